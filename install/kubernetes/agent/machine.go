package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"lighter/install/kubernetes"
)

// Machine carries out what changes the machine. In each result, Error says what went wrong.
type Machine interface {
	// Install installs Lighter. again says that it was installed before: only what was lost since
	// is installed.
	Install(ctx context.Context, again bool) kubernetes.Result
	// Withdraw makes the kubelet use the previous snapshotter. own is the UID of the pod that asks.
	Withdraw(ctx context.Context, own string) kubernetes.Result
	// Hand makes the machine remove Lighter when the last container that uses it is gone.
	Hand(ctx context.Context) kubernetes.Result
}

// Child is the machine whose root directory this process sees at Root: it runs this program there.
// So the machine's own programs (systemctl, containerd) run with their libraries, and paths mean
// what they mean on the machine.
type Child struct {
	Root   string
	Config []byte // the node's configuration
	Flags  []string
	Purge  bool
	Log    *slog.Logger

	installed string // the path of the program that the machine has
}

// HostCommand is the child's subcommand of `lighter install` and `lighter uninstall`.
const HostCommand = "kubernetes-host"

// childTimeout bounds a child: it restarts two services, and each may take minutes.
const childTimeout = 20 * time.Minute

func (c *Child) Install(ctx context.Context, again bool) kubernetes.Result {
	args := append([]string{"install", HostCommand, fmt.Sprintf("--again=%t", again)}, c.Flags...)
	program := self
	if _, err := os.Stat(filepath.Join(c.Root, c.installed)); again && c.installed != "" && err == nil {
		program = c.installed // this one cannot be read without the node, if the image of this pod is lazy
	}
	r := c.run(ctx, program, args...)
	c.installed = cmp.Or(r.Program, c.installed)
	return r
}

func (c *Child) Withdraw(ctx context.Context, own string) kubernetes.Result {
	return c.run(ctx, self, append([]string{"uninstall", HostCommand, "--own-pod", own}, c.Flags...)...)
}

func (c *Child) Hand(ctx context.Context) kubernetes.Result {
	args := []string{"uninstall", HostCommand, "--hand-over"}
	if c.Purge {
		args = append(args, "--purge")
	}
	return c.run(ctx, self, append(args, c.Flags...)...)
}

// self is this program, also below the machine's root, because both have the same process IDs.
const self = "/proc/self/exe"

// run runs a program of Lighter below the machine's root.
func (c *Child) run(ctx context.Context, program string, args ...string) (r kubernetes.Result) {
	ctx, cancel := context.WithTimeout(ctx, childTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: c.Root}
	cmd.Dir = "/"
	// systemctl ignores requests from a chroot without this variable.
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/bin",
		"SYSTEMD_IGNORE_CHROOT=1", "LANG=C.UTF-8", "GOMEMLIMIT=" + os.Getenv("GOMEMLIMIT")}
	cmd.Stdin = bytes.NewReader(c.Config)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if text := strings.TrimSpace(stderr.String()); text != "" {
		c.Log.Info("the machine says", "text", text)
	}
	if wrong := json.Unmarshal(stdout.Bytes(), &r); wrong != nil && err == nil {
		err = wrong
	}
	if err != nil && r.Error == "" {
		r.Error = fmt.Sprintf("run lighter %s below %s: %v: %s", strings.Join(args[:2], " "), c.Root, err,
			strings.TrimSpace(stderr.String()))
	}
	return r
}
