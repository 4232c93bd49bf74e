package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lighter/durable"
	"lighter/install"
	"lighter/install/systemd"
	"lighter/node/doctor"
	front "lighter/node/front/containerd"
	"lighter/sleep"
)

// Installed reports whether Install has begun on this machine, and Remove has not ended.
func (h *Host) Installed() bool { return !install.Missing(h.Machine.Path(directory)) }

// Withdraw makes the kubelet's pulls use the previous snapshotter, and says which containers still
// use the node, apart from those of the pod with the UID own. If nothing uses the node, a
// configuration that cannot be changed is no error, but a note: the installation may have failed
// for the same reason.
func (h *Host) Withdraw(ctx context.Context, own string) (r Result, err error) {
	unlock, err := h.lock(ctx, "a withdrawal")
	if err != nil {
		return r, err
	}
	defer unlock()
	if !h.Installed() {
		return r, nil
	}
	d, err := h.find(ctx)
	if err != nil {
		return r, err
	}
	r.Distribution, h.CRI = d.Name, false
	failed := h.installContainerd(ctx, d, &r)
	users, err := front.Users(ctx, d.socket, "lighter")
	r.Users = names(slices.DeleteFunc(users, func(u front.User) bool { return u.PodUID != "" && u.PodUID == own }))
	if failed != nil && err == nil && len(r.Users) == 0 {
		r.Notes = append(r.Notes, failed.Error())
		failed = nil
	}
	return r, errors.Join(failed, err)
}

// names returns what an operator has to remove: each pod once, although it has several containers.
func names(users []front.User) (names []string) {
	for _, u := range users {
		names = append(names, u.String())
	}
	return slices.Compact(names) // users are sorted
}

// Remove removes everything that Install and HandOver installed. The node's directory stays, unless
// purge is set. If it fails, `lighter doctor` says why.
func (h *Host) Remove(ctx context.Context, purge bool) (r Result, err error) {
	unlock, err := h.lock(ctx, "a removal")
	if err != nil {
		return r, err
	}
	defer unlock()
	if !h.Installed() {
		return r, nil
	}
	err = h.remove(ctx, purge, &r)
	if err != nil && ctx.Err() == nil {
		err = errors.Join(err, h.note(err))
	}
	return r, err
}

// remove removes everything while the machine is locked.
func (h *Host) remove(ctx context.Context, purge bool, r *Result) error {
	d, err := h.find(ctx)
	if err != nil {
		return err
	}
	r.Distribution = d.Name
	users, err := front.Users(ctx, d.socket, "lighter")
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return fmt.Errorf("the snapshotter is in use: %s: remove these first", strings.Join(names(users), ", "))
	}
	t, err := h.containerd(d)
	if err != nil {
		return err
	}
	root := h.Machine.Path(t.Node.Root)
	targets := []install.Target{t, &systemd.Target{Machine: h.Machine, Root: root, Purge: purge}}
	for _, target := range targets {
		p, err := target.Uninstall(ctx)
		if err != nil {
			return err
		}
		report, err := h.Machine.Apply(ctx, p, install.Options{Restart: true})
		r.add(report)
		if err != nil {
			return err
		}
	}
	return h.removeOwn(ctx, r)
}

// removeOwn removes the service of HandOver, and then the program that it runs. Systemd knows the
// service until the end: if this process is killed meanwhile, systemd starts it again.
func (h *Host) removeOwn(ctx context.Context, r *Result) error {
	if err := h.dropRemoval(ctx, r, "disable", removal); err != nil {
		return err
	}
	own := h.Machine.Path(directory)
	if err := errors.Join(os.RemoveAll(own), durable.SyncDir(filepath.Dir(own))); err != nil {
		return err
	}
	return h.steps(ctx, r, h.Machine.Systemctl("daemon-reload"))
}

// note writes why a removal has failed to where `lighter doctor` finds it.
func (h *Host) note(cause error) error {
	name, text := h.Machine.Path(doctor.RemovalFile), []byte(cause.Error()+"\n")
	if old, err := os.ReadFile(name); err == nil && bytes.Equal(old, text) {
		return nil
	}
	return durable.Replace(name, text)
}

// removal is the service that removes Lighter when nothing uses it any more. Systemd starts it
// again after a restart of the machine.
const (
	removal     = "lighter-uninstall.service"
	removalFile = "/etc/systemd/system/" + removal
	removalUnit = `# Written by lighter uninstall kubernetes. It removes itself.
[Unit]
Description=Removes Lighter when no container uses it any more
ConditionPathExists=%[1]s

[Service]
ExecStart=%[1]s %[2]s
Restart=on-failure
RestartSec=10s

[Install]
WantedBy=multi-user.target
`
)

// HandOver starts a service of the machine that carries out RemoveUnused with this program, and the
// given arguments. So the pod that asks for it can end: its own root may be a snapshot of the node.
func (h *Host) HandOver(ctx context.Context, args ...string) (r Result, err error) {
	unlock, err := h.lock(ctx, "the beginning of a removal")
	if err != nil {
		return r, err
	}
	defer unlock()
	if !h.Installed() {
		return r, nil
	}
	config, err := h.config()
	if err != nil {
		return r, err
	}
	program, err := h.publish()
	if err != nil {
		return r, fmt.Errorf("install the program: %w", err)
	}
	line := ""
	for _, arg := range append(args, "--root="+config.Root) {
		line += " " + quoted(arg)
	}
	if err := durable.Replace(h.Machine.Path(removalFile),
		fmt.Appendf(nil, removalUnit, program, line[1:])); err != nil {
		return r, err
	}
	return r, h.steps(ctx, &r, h.Machine.Systemctl("daemon-reload"), h.Machine.Systemctl("enable", "--now", removal))
}

// quoted returns an argument as systemd reads it in a command line.
func quoted(arg string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$").Replace(arg) + `"`
}

// steps carries out steps, and stops at the first one that fails.
func (h *Host) steps(ctx context.Context, r *Result, steps ...install.Step) error {
	for _, step := range steps {
		if err := step.Run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.What, err)
		}
		r.Done = append(r.Done, step.What)
	}
	return nil
}

// stopRemoval ends and removes the service of an earlier HandOver, which would remove what is
// installed now.
func (h *Host) stopRemoval(ctx context.Context, r *Result) error {
	if err := os.Remove(h.Machine.Path(doctor.RemovalFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if install.Missing(h.Machine.Path(removalFile)) {
		return nil
	}
	if err := h.dropRemoval(ctx, r, "disable", "--now", removal); err != nil {
		return err
	}
	return h.steps(ctx, r, h.Machine.Systemctl("daemon-reload"))
}

// dropRemoval removes the service's file, if there is one, after systemctl was called with the
// given arguments.
func (h *Host) dropRemoval(ctx context.Context, r *Result, args ...string) error {
	name := h.Machine.Path(removalFile)
	if install.Missing(name) {
		return nil
	}
	if err := h.steps(ctx, r, h.Machine.Systemctl(args...)); err != nil {
		return err
	}
	return errors.Join(os.Remove(name), durable.SyncDir(filepath.Dir(name)))
}

// RemoveUnused tries to remove everything until no container uses the node. The service of HandOver
// runs this. Each new reason why it has to try again goes to the log.
func (h *Host) RemoveUnused(ctx context.Context, purge bool, every time.Duration, log *slog.Logger) (Result, error) {
	for last := ""; ; {
		r, err := h.Remove(ctx, purge)
		if err == nil {
			return r, nil
		}
		if why := err.Error(); why != last && ctx.Err() == nil {
			log.Warn("Lighter is not removed yet", "err", err)
			last = why
		}
		if !sleep.For(ctx, every) {
			return r, err
		}
	}
}
