package site

import (
	"context"
	"errors"
	"strings"
)

// Daemon is a program that runs on the machine beside containerd and the node, dockerd for example.
type Daemon struct{ process *process }

// StartDaemon starts a program on the machine, and waits until it listens on a Unix socket. NAME is
// the name of its log. The caller stops it before the site closes.
func (m *Machine) StartDaemon(ctx context.Context, name, socket string, argv ...string) (*Daemon, error) {
	p, err := m.site.startProcess(name, append(strings.Fields(m.inside("")), argv...))
	if err != nil {
		return nil, err
	}
	if err := p.await(ctx, dial("unix", socket)); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return &Daemon{p}, nil
}

// Stop stops the program with SIGTERM.
func (d *Daemon) Stop() error { return d.process.stop() }

// Kill kills the program with SIGKILL, like a crash.
func (d *Daemon) Kill() { d.process.kill() }

// PID returns the ID of the program's process.
func (d *Daemon) PID() int { return d.process.pid() }

// Log returns the path of the program's log.
func (d *Daemon) Log() string { return d.process.log }
