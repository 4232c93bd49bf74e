package install

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// systemctlTimeout bounds one call of systemctl. A service may take its own TimeoutStopSec and
// TimeoutStartSec, which are below this in our units and in containerd's.
const systemctlTimeout = 5 * time.Minute

// Systemctl returns the step that runs systemctl with these arguments.
func (m Machine) Systemctl(args ...string) Step { return m.Command("systemctl", args...) }

// Command returns the step that runs a program of systemd with these arguments.
func (m Machine) Command(program string, args ...string) Step {
	return Step{What: program + " " + strings.Join(args, " "), Run: func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, systemctlTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.WaitDelay = time.Second
		out, err := cmd.CombinedOutput()
		if text := strings.TrimSpace(string(out)); err != nil && text != "" {
			return fmt.Errorf("%w: %s", err, text)
		}
		return err
	}}
}
