package install

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"strings"
)

// RestartOf returns how a program is restarted: by the unit of systemd that its process belongs to,
// or by otherwise if that is not visible. A program may be a part of another service, containerd of
// k3s for example. A program that a user has started belongs to no unit of the machine: to restart
// user@.service would end all programs of the user, and otherwise would be another program.
func (m Machine) RestartOf(what string, pid int, otherwise string) Restart {
	text, err := os.ReadFile(m.Path(fmt.Sprintf("proc/%d/cgroup", pid)))
	if err != nil {
		return Restart{What: what, Units: []string{otherwise}}
	}
	for line := range bytes.Lines(text) {
		group := strings.TrimSpace(string(line[bytes.LastIndexByte(line, ':')+1:]))
		if user, below, found := ofUser(group); found {
			return Restart{What: what, ByHand: byHand(what, user, serviceOf(below))}
		}
		if unit := serviceOf(group); unit != "" {
			return Restart{What: what, Units: []string{unit}}
		}
	}
	return Restart{What: what, Units: []string{otherwise}}
}

// serviceOf returns the service that a control group belongs to, or "".
func serviceOf(group string) string {
	for ; group != "" && group != "/" && group != "."; group = path.Dir(group) {
		if strings.HasSuffix(group, ".service") {
			return path.Base(group)
		}
	}
	return ""
}

// ofUser returns the number of the user whose program a control group has, and what the group is
// below the user's own systemd.
func ofUser(group string) (user, below string, found bool) {
	parts := strings.Split(group, "/")
	for n, part := range parts {
		if user, found = between(part, "user@", ".service"); found {
			return user, strings.Join(parts[n+1:], "/"), true
		}
		if user, found = between(part, "user-", ".slice"); found && n+1 < len(parts) &&
			strings.HasPrefix(parts[n+1], "session-") {
			return user, "", true
		}
	}
	return "", "", false
}

func between(text, prefix, suffix string) (inner string, found bool) {
	inner, begins := strings.CutPrefix(text, prefix)
	inner, ends := strings.CutSuffix(inner, suffix)
	return inner, begins && ends
}

// byHand says how a user's program is restarted.
func byHand(what, user, unit string) string {
	how := "restart it as that user has started it"
	if unit != "" {
		how = "as that user, run systemctl --user restart " + unit
	}
	return fmt.Sprintf("%s is not restarted, because it is a program of user %s and no service of the machine: %s",
		what, user, how)
}
