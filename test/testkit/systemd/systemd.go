// Package systemd runs systemd on a site's machine, for services that are installed below
// /etc/systemd/system. It is the manager of a user, root, because it is not process 1. The units,
// systemctl and the notifications are systemd's own.
//
// Until Stop, /etc is a copy, and /opt and /usr/local/sbin are empty, all of
// them in the enclosure alone. Its mounts are shared, as systemd has them on a machine.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/site"
)

const (
	// Units is the directory of the units.
	Units   = "/etc/systemd/system"
	runtime = "/run/manager" // of the manager's sockets: short
	timeout = time.Minute    // for the manager's start
)

// script is systemctl for all programs of the machine, also for those that change their root. The
// program is called by its path: the script is found first.
const script = "#!/bin/sh\nXDG_RUNTIME_DIR=" + runtime + " exec /usr/bin/systemctl --user \"$@\"\n"

// logs makes each service write a log in the site's directory.
const logs = "[Service]\nStandardOutput=append:%[1]s/logs/%%p.log\nStandardError=append:%[1]s/logs/%%p.log\n"

// Manager is a running systemd.
type Manager struct {
	site    *site.Site
	service *site.Service
}

// Start starts systemd on a site's machine. The caller stops it before the site is closed.
func Start(ctx context.Context, s *site.Site) (*Manager, error) {
	if err := mounts(filepath.Join(s.Dir, "systemd")); err != nil {
		return nil, err
	}
	for name, text := range map[string]string{"/usr/local/sbin/systemctl": script,
		Units + "/service.d/logs.conf": fmt.Sprintf(logs, s.Dir)} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o755),
			os.Chmod(name, 0o755)); err != nil {
			return nil, err
		}
	}
	m := &Manager{site: s}
	return m, m.Boot(ctx)
}

// Boot starts systemd after Machine.PowerOff. It starts no service.
func (m *Manager) Boot(ctx context.Context) (err error) {
	group := filepath.Join("/sys/fs/cgroup/systemd", m.site.Machine.Namespace(), "manager") // the site removes it
	// Units that are enabled have their links where the manager of a user has them.
	enabled := filepath.Join(runtime, ".config/systemd/user")
	for _, made := range []string{group, filepath.Dir(enabled), "/run/systemd/system"} {
		if err := os.MkdirAll(made, 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink(Units, enabled); err != nil {
		return err
	}
	m.service, err = m.site.StartService(ctx, "systemd", m.site.Machine.Inside("env", "XDG_RUNTIME_DIR="+runtime,
		"HOME="+runtime, "SYSTEMD_UNIT_PATH="+Units+":/usr/lib/systemd/user", "sh", "-c",
		"echo $$ > "+group+"/cgroup.procs && exec /usr/lib/systemd/systemd --user --log-target=console"), timeout,
		func() error { return m.Systemctl(ctx, "show-environment") })
	return err
}

// mounts gives the enclosure directories of its own for what is installed, below dir.
func mounts(dir string) error {
	upper, work := filepath.Join(dir, "etc"), filepath.Join(dir, "work")
	for _, made := range []string{upper, work} {
		if err := os.MkdirAll(made, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share the enclosure's mounts: %w", err)
	}
	options := fmt.Sprintf("lowerdir=/etc,upperdir=%s,workdir=%s", upper, work)
	if err := unix.Mount("overlay", "/etc", "overlay", 0, options); err != nil {
		return fmt.Errorf("mount a copy of /etc: %w", err)
	}
	if err := os.MkdirAll(Units, 0o755); err != nil {
		return err
	}
	for _, target := range []string{Units, "/opt", "/usr/local/sbin"} {
		if err := unix.Mount("tmpfs", target, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount a tmpfs at %s: %w", target, err)
		}
	}
	return nil
}

// Systemctl runs systemctl.
func (m *Manager) Systemctl(ctx context.Context, args ...string) error {
	_, err := m.site.Machine.Command(ctx, append([]string{"/usr/local/sbin/systemctl"}, args...)...)
	return err
}

// Stop stops systemd with its services, and gives the enclosure its mounts back.
func (m *Manager) Stop() error {
	errs := []error{m.service.Stop()}
	for _, target := range []string{"/usr/local/sbin", "/opt", Units, "/etc"} {
		errs = append(errs, unix.Unmount(target, unix.MNT_DETACH))
	}
	return errors.Join(errs...)
}
