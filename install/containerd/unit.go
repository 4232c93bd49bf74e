package containerd

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"strings"

	"lighter/install"
)

// defaultUnit is the unit of a containerd whose process is not visible.
const defaultUnit = "containerd.service"

// unitOf returns the unit of systemd that a process belongs to. containerd may be a part of another
// service, of k3s for example.
func unitOf(m install.Machine, pid int) string {
	text, err := os.ReadFile(m.Path(fmt.Sprintf("proc/%d/cgroup", pid)))
	if err != nil {
		return defaultUnit
	}
	for line := range bytes.Lines(text) {
		group := strings.TrimSpace(string(line[bytes.LastIndexByte(line, ':')+1:]))
		for ; group != "" && group != "/" && group != "."; group = path.Dir(group) {
			if strings.HasSuffix(group, ".service") {
				return path.Base(group)
			}
		}
	}
	return defaultUnit
}
