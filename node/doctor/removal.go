package doctor

import (
	"context"
	"os"
	"strings"
)

// RemovalFile says why the removal from a node of a Kubernetes cluster has failed. Package
// install/kubernetes writes it, and tries again.
const RemovalFile = "/opt/lighter/removal"

// removal checks whether a removal of Lighter from this machine fails.
func (m *machine) removal(context.Context) []Finding {
	text, err := os.ReadFile(m.path(RemovalFile))
	why := strings.Join(strings.Split(strings.TrimSpace(string(text)), "\n"), "; ")
	return first([]rule{
		{err == nil, Warning, "Lighter is to be removed from this machine, and that has failed: " + why,
			"repair that, and the machine tries again: journalctl -u lighter-uninstall"},
	})
}
