//go:build e2e

package systemd

import (
	"os/exec"
	"strings"
	"testing"

	"lighter/deploy"
)

// systemd accepts the units as they are written.
func TestSystemdAcceptsWrittenUnits(t *testing.T) {
	f := newFixture(t)
	f.target.Hub = &Service{Config: deploy.HubConfig, Text: []byte("\n")}
	f.apply(f.target.Install(t.Context()))
	for _, name := range []string{nodeUnit, hubUnit} {
		out, err := exec.Command("systemd-analyze", "verify", f.target.Machine.Path(unitDir+"/"+name)).CombinedOutput()
		for line := range strings.Lines(string(out)) {
			// Debian 12's systemd does not know this setting and ignores it.
			if strings.Contains(line, name) && !strings.Contains(line, "'FileDescriptorStorePreserve'") {
				t.Error(line)
			}
		}
		if err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}
