package install

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"strings"
)

// UnitOf returns the unit of systemd that a process belongs to, or otherwise if it is not visible.
// A program may be a part of another service, containerd of k3s for example.
func (m Machine) UnitOf(pid int, otherwise string) string {
	text, err := os.ReadFile(m.Path(fmt.Sprintf("proc/%d/cgroup", pid)))
	if err != nil {
		return otherwise
	}
	for line := range bytes.Lines(text) {
		group := strings.TrimSpace(string(line[bytes.LastIndexByte(line, ':')+1:]))
		for ; group != "" && group != "/" && group != "."; group = path.Dir(group) {
			if strings.HasSuffix(group, ".service") {
				return path.Base(group)
			}
		}
	}
	return otherwise
}
