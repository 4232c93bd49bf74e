package install

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
)

// UnitOf returns the unit of systemd that a process belongs to, or otherwise if it is not visible.
// A program may be a part of another service, containerd of k3s for example. A program that a user
// has started belongs to no unit of the machine: to restart user@.service would end all programs of
// the user, and the units below are those of the user's own systemd.
func (m Machine) UnitOf(pid int, otherwise string) string {
	text, err := os.ReadFile(m.Path(fmt.Sprintf("proc/%d/cgroup", pid)))
	if err != nil {
		return otherwise
	}
	for line := range bytes.Lines(text) {
		group := strings.TrimSpace(string(line[bytes.LastIndexByte(line, ':')+1:]))
		if inSession(group) {
			return otherwise
		}
		for ; group != "" && group != "/" && group != "."; group = path.Dir(group) {
			if strings.HasSuffix(group, ".service") {
				return path.Base(group)
			}
		}
	}
	return otherwise
}

// inSession reports whether a control group is below a user's own systemd.
func inSession(group string) bool {
	return slices.ContainsFunc(strings.Split(group, "/"), func(unit string) bool {
		return strings.HasPrefix(unit, "user@") && strings.HasSuffix(unit, ".service")
	})
}
