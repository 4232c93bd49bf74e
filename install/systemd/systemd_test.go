package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/deploy"
	"lighter/install"
)

// fixture is a machine with systemd, whose systemctl writes down its arguments.
type fixture struct {
	t      *testing.T
	target *Target
	calls  string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	dir := t.TempDir()
	m := install.Machine{System: filepath.Join(dir, "root")}
	f := &fixture{t: t, calls: filepath.Join(dir, "calls"), target: &Target{Machine: m,
		Program: filepath.Join(dir, "lighter"), Root: filepath.Join(dir, "node"),
		Node: Service{Config: deploy.NodeConfig, Text: []byte("root = '/x'\n")}}}
	script := fmt.Sprintf("#!/bin/sh\necho \"$*\" >> %s\n", f.calls)
	if err := errors.Join(os.MkdirAll(m.Path("run/systemd/system"), 0o755), os.MkdirAll(m.Path(unitDir), 0o755),
		os.MkdirAll(m.Path("/etc"), 0o755), os.WriteFile(f.target.Program, []byte("x"), 0o755),
		os.WriteFile(filepath.Join(dir, "systemctl"), []byte(script), 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return f
}

// apply carries out a plan, and returns the calls of systemctl.
func (f *fixture) apply(p *install.Plan, err error) string {
	f.t.Helper()
	if err == nil {
		_, err = f.target.Machine.Apply(f.t.Context(), p, install.Options{Restart: true})
	}
	if err != nil {
		f.t.Fatal(err)
	}
	calls, err := os.ReadFile(f.calls)
	if err := errors.Join(err, os.Remove(f.calls)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.t.Fatal(err)
	}
	return string(calls)
}

// files lists the files of the machine, apart from systemd's own.
func (f *fixture) files() (names []string) {
	f.t.Helper()
	root := f.target.Machine.System
	if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, strings.TrimPrefix(path, root))
		}
		return err
	}); err != nil {
		f.t.Fatal(err)
	}
	return names
}

func (f *fixture) read(path string) string {
	f.t.Helper()
	b, err := os.ReadFile(f.target.Machine.Path(path))
	if err != nil {
		f.t.Fatal(err)
	}
	return string(b)
}

func (f *fixture) write(path, text string) {
	f.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(f.target.Machine.Path(path)), 0o755),
		os.WriteFile(f.target.Machine.Path(path), []byte(text), 0o644)); err != nil {
		f.t.Fatal(err)
	}
}

const nodePath = unitDir + "/" + nodeUnit

// The services are written, enabled and started; a second run writes nothing. The removal stops
// them first, and removes what was written.
func TestInstallAndUninstall(t *testing.T) {
	for _, withHub := range []bool{false, true} {
		f := newFixture(t)
		names := nodeUnit
		if withHub {
			f.target.Hub = &Service{Config: deploy.HubConfig, Text: []byte("listen = '127.0.0.1:7070'\n")}
			names = hubUnit + " " + nodeUnit
		}
		want := "daemon-reload\nenable " + names + "\nrestart " + names + "\nis-active " + names + "\n"
		if got := f.apply(f.target.Install(t.Context())); got != want {
			t.Errorf("calls of systemctl: got %q, want %q", got, want)
		}
		unit := f.read(nodePath)
		if !strings.Contains(unit, "\nExecStart="+f.target.Program+" node --config /etc/lighter/node.toml\n") ||
			!strings.HasSuffix(f.read(deploy.NodeConfig), "\nroot = '/x'\n") {
			t.Errorf("got the unit\n%s\nand the configuration %q; want the program and the text",
				unit, f.read(deploy.NodeConfig))
		}
		plan, err := f.target.Install(t.Context())
		if err != nil || len(plan.Changes) > 0 {
			t.Errorf("a second run: %+v, %v; want no changes", plan, err)
		}
		removed := nodeUnit
		if withHub {
			removed += " " + hubUnit
		}
		want = "disable --now " + removed + "\nclean --what=fdstore " + nodeUnit + "\ndaemon-reload\n"
		if got := f.apply(f.target.Uninstall(t.Context())); got != want || len(f.files()) > 0 {
			t.Errorf("the removal: calls %q, files %v; want %q and none", got, f.files(), want)
		}
		if plan, err = f.target.Uninstall(t.Context()); err != nil || len(plan.Changes)+len(plan.Before) > 0 {
			t.Errorf("a second removal: %+v, %v; want nothing to do", plan, err)
		}
	}
}

// What others wrote or changed stays.
func TestOthersFilesStay(t *testing.T) {
	f := newFixture(t)
	f.write(deploy.NodeConfig, "root = '/mine'\n")
	f.target.Node.Compare = func(text []byte) error { return fmt.Errorf("compared with %q", text) }
	if _, err := f.target.Install(t.Context()); err == nil || !strings.Contains(err.Error(), "/mine") {
		t.Errorf("an existing configuration that does not fit: got %v, want an error", err)
	}
	f.target.Node.Compare = nil
	f.apply(f.target.Install(t.Context()))
	if got := f.read(deploy.NodeConfig); got != "root = '/mine'\n" {
		t.Errorf("an existing configuration was changed to %q", got)
	}
	f.write(nodePath, f.read(nodePath)+"# mine\n")
	f.apply(f.target.Uninstall(t.Context()))
	if got := f.read(nodePath); got != "# mine\n" || f.read(deploy.NodeConfig) != "root = '/mine'\n" {
		t.Errorf("after the removal: unit %q, configuration %q; want the user's", got, f.read(deploy.NodeConfig))
	}
	refused := (*install.Refused)(nil)
	if _, err := f.target.Install(t.Context()); !errors.As(err, &refused) {
		t.Errorf("a unit of somebody else: got %v, want a refusal", err)
	}

	f = newFixture(t)
	f.apply(f.target.Install(t.Context()))
	f.write(deploy.NodeConfig, f.read(deploy.NodeConfig)+"cache_size = '1TiB'\n")
	f.apply(f.target.Uninstall(t.Context()))
	if names := f.files(); len(names) != 1 || names[0] != deploy.NodeConfig {
		t.Errorf("after the removal: got %v, want the changed configuration", names)
	}
}

// The node's directory stays, unless the user wants to remove it.
func TestPurge(t *testing.T) {
	f := newFixture(t)
	if err := os.MkdirAll(filepath.Join(f.target.Root, "cache"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, purge := range []bool{false, true} {
		f.target.Purge = purge
		f.apply(f.target.Install(t.Context()))
		f.apply(f.target.Uninstall(t.Context()))
		if _, err := os.Stat(f.target.Root); errors.Is(err, fs.ErrNotExist) != purge {
			t.Errorf("purge %t: the node's directory: %v", purge, err)
		}
	}
}

// Without systemd, with a program that others may write, or without the named configuration,
// nothing is installed.
func TestRefusals(t *testing.T) {
	for want, spoil := range map[string]func(f *fixture) error{
		"systemd does not run": func(f *fixture) error { return os.RemoveAll(f.target.Machine.Path("run")) },
		"must not run as root": func(f *fixture) error { return os.Chmod(f.target.Program, 0o777) },
		"node.toml does not exist": func(f *fixture) error {
			f.target.Node.Text = nil
			return nil
		},
	} {
		f := newFixture(t)
		if err := spoil(f); err != nil {
			t.Fatal(err)
		}
		if _, err := f.target.Install(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}
