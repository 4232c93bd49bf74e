//go:build e2e

package system

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/install"
	"lighter/node/doctor"
	"lighter/test/testkit/images"
	"lighter/test/testkit/pods"
	"lighter/test/testkit/site"
	"lighter/test/testkit/systemctl"
)

// serviceManager is a program called systemctl, and what it does for `systemctl restart`. No
// systemd runs on the machine.
type serviceManager struct {
	t        *testing.T
	dir      string
	restarts []func() error // one for each expected restart
}

// newServiceManager makes a systemctl, and makes the machine look as if systemd ran.
func newServiceManager(t *testing.T) *serviceManager {
	t.Helper()
	m := &serviceManager{t: t}
	m.dir = systemctl.New(t, m.restart)
	return m
}

// restart does what is expected next.
func (m *serviceManager) restart(unit string) error {
	if len(m.restarts) == 0 {
		m.t.Errorf("systemctl restart %s: got a call, want none", unit)
		return errors.New("no restart is expected")
	}
	next := m.restarts[0]
	m.restarts = m.restarts[1:]
	return next()
}

// command returns a command of lighter for the machine's containerd.
func (m *serviceManager) command(s *site.Site, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(m.t.Context(), binary(m.t), append(args, "--containerd", s.Machine.ContainerdSocket(),
		"--root", s.Machine.NodeRoot(), "--json")...)
	cmd.Env = append(os.Environ(), "PATH="+m.dir+":"+os.Getenv("PATH"))
	return cmd
}

// lighter runs a command of lighter, which must succeed, and returns its report.
func (m *serviceManager) lighter(s *site.Site, args ...string) install.Report {
	m.t.Helper()
	cmd := m.command(s, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var r install.Report
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil || len(m.restarts) > 0 {
		m.t.Fatalf("lighter %s: %v, %d restarts are missing: %s%s", strings.Join(args, " "), err, len(m.restarts), out,
			stderr.String())
	}
	return r
}

// ofSite is an administrator's configuration of containerd. site.Options completes it.
const ofSite = "# The site's configuration; do not change the version.\nversion = VERSION\n\n[debug]\n" +
	"\t# as the operators want it\n\tlevel = \"info\" # not debug\n"

// containerd gets the settings and comes back with them, an image is lazy, and the removal leaves
// the configuration byte for byte as it was. So it does if the first restart fails, or the command
// is killed before containerd has restarted.
func TestInstallContainerd(t *testing.T) {
	s := start(t, site.Options{Config: strings.Replace(ofSite, "VERSION", "3", 1)}, "+python")
	file := filepath.Join(filepath.Dir(s.Machine.NodeRoot()), "containerd.toml")
	m := newServiceManager(t)
	restart := func() error { return s.Machine.RestartContainerd(t.Context()) }
	add := []string{"install", "containerd", "--restart"}
	original := withImports(t, file, "")

	m.restarts = []func() error{func() error { return errors.New("it does not start") }, restart}
	out, err := m.command(s, add...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the previous configuration is in place again") {
		t.Errorf("a failed restart: got %v, %s; want an error about the previous configuration", err, out)
	}
	unchanged(t, "after a failed restart", file, original)

	killed := m.command(s, add...)
	m.restarts = []func() error{func() error { return killed.Process.Kill() }}
	if out, err := killed.CombinedOutput(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("the command ended with %v, want SIGKILL: %s", err, out)
	}
	m.restarts = []func() error{restart}
	if r := m.lighter(s, add...); len(r.Done) != 1 || len(r.Files) != 0 {
		t.Errorf("after SIGKILL: got %+v, want only a restart", r)
	}
	if r := m.lighter(s, add...); len(r.Done)+len(r.Files)+len(r.Next) != 0 {
		t.Errorf("a second installation: got %+v, want nothing done", r)
	}
	findings, _ := examine(t, s)
	if slices.ContainsFunc(findings, func(f doctor.Finding) bool {
		return f.Area == "containerd" && f.Level != doctor.OK
	}) {
		t.Errorf("the doctor's findings: got\n%s\nwant none about containerd", listed(findings))
	}
	moved := images.Received(t, s, func() { pull(t, s, site.Lighter, "python") })
	if moved > 3<<20 {
		t.Errorf("the pull received %d bytes, want at most 3 MiB: no layer", moved)
	}
	runLazily(t, s, s.Machine.Namespace(), site.Reference("python"))
	refusedWhileUsed(t, m, s)
	removed(t, m, s, file, original, restart)

	// The same with a file of our own that containerd imports.
	original = withImports(t, file, "conf.d/*.toml")
	m.restarts = []func() error{restart}
	if r := m.lighter(s, add...); len(r.Files) != 1 || r.Files[0].Action != "create" {
		t.Errorf("with imports: got %+v, want a new file", r)
	}
	if plugins := ctr(t, s, "plugins", "ls"); !strings.Contains(plugins, site.Lighter) {
		t.Errorf("containerd's plugins:\n%s\nwant lighter", plugins)
	}
	removed(t, m, s, file, original, restart)

	// The same with the node's differ, which a file with a list of differs must not keep from being
	// asked.
	original += "[plugins.'io.containerd.service.v1.diff-service']\n  default = ['walking']\n"
	if err := os.WriteFile(file, []byte(original), 0o644); err != nil {
		t.Fatal(err)
	}
	m.restarts = []func() error{restart}
	m.lighter(s, append(add, "--differ")...)
	pull(t, s, site.Lighter, "python")
	findings, _ = examine(t, s)
	if !slices.ContainsFunc(findings, func(f doctor.Finding) bool {
		return strings.Contains(f.What, doctor.DifferUses)
	}) {
		t.Errorf("the doctor's findings with --differ: got\n%s\nwant one about the node's differ", listed(findings))
	}
	if moved := commit(t, s); moved > 10<<20 {
		t.Errorf("the layer of a new file received %d bytes, want not the image: the node makes it", moved)
	}
	if err := s.Machine.RemoveImage(t.Context(), site.Reference("python")); err != nil {
		t.Fatal(err)
	}
	removed(t, m, s, file, original, restart)
}

// commit makes the layer of a container of python that has written a file, and returns the bytes
// that were received for it.
func commit(t *testing.T, s *site.Site) int64 {
	t.Helper()
	c, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("python"), "sleep", "infinity")
	if err == nil {
		_, err = c.Exec(t.Context(), "sh", "-c", "echo new > /new")
	}
	if err != nil {
		t.Fatal(err)
	}
	moved := images.Received(t, s, func() { ctr(t, s, "snapshots", "--snapshotter", site.Lighter, "diff", c.ID) })
	if err := c.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	return moved
}

// Pulls of the kubelet are lazy after an installation with --cri for Debian's containerd.
func TestInstallDebiansContainerd(t *testing.T) {
	s := start(t, site.Options{Config: strings.Replace(ofSite, "VERSION", "2", 1), Containerd: site.Debian}, "+python")
	file := filepath.Join(filepath.Dir(s.Machine.NodeRoot()), "containerd.toml")
	m := newServiceManager(t)
	restart := func() error { return s.Machine.RestartContainerd(t.Context()) }
	original, ref := withImports(t, file, ""), site.Reference("python")
	m.restarts = []func() error{restart}
	if r := m.lighter(s, "install", "containerd", "--cri", "--restart"); len(r.Files) != 1 || len(r.Notes) != 1 {
		t.Errorf("got %+v, want one file, and a note about the kubelet's disk", r)
	}
	moved := images.Received(t, s, func() { pods.Pull(t, s, ref, "") })
	if moved > 3<<20 {
		t.Errorf("the pull received %d bytes, want at most 3 MiB: no layer", moved)
	}
	runLazily(t, s, "k8s.io", ref)
	if _, err := s.Machine.CtrIn(t.Context(), "k8s.io", "images", "rm", "--sync", ref); err != nil {
		t.Fatal(err)
	}
	removed(t, m, s, file, original, restart)
}

// removed removes the settings, and checks that nothing is left of them.
func removed(t *testing.T, m *serviceManager, s *site.Site, file, original string, restart func() error) {
	t.Helper()
	m.restarts = []func() error{restart}
	if r := m.lighter(s, "uninstall", "containerd", "--restart"); len(r.Files) != 1 || len(r.Done) != 1 {
		t.Errorf("the removal: got %+v, want one file and a restart", r)
	}
	unchanged(t, "after the removal", file, original)
	if plugins := ctr(t, s, "plugins", "ls"); strings.Contains(plugins, site.Lighter) {
		t.Errorf("containerd's plugins after the removal:\n%s\nwant no lighter", plugins)
	}
}

// withImports gives containerd's configuration a pattern of imports, and returns its text.
func withImports(t *testing.T, file, pattern string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if pattern != "" {
		text = strings.Replace(text, "imports = []", fmt.Sprintf("imports = [%q]", pattern), 1)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return text
}

// unchanged checks that a configuration has a text, and that nothing else is left beside it.
func unchanged(t *testing.T, when, file, want string) {
	t.Helper()
	got, err := os.ReadFile(file)
	if err != nil || string(got) != want {
		t.Errorf("%s: the configuration is (%v)\n%s\nwant\n%s", when, err, got, want)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*.lighter-new"))
	if _, none := os.Stat(filepath.Join(filepath.Dir(file), "conf.d")); err != nil || len(left) > 0 || none == nil {
		t.Errorf("%s: files that are left: %v (%v); directory of imports: %v; want none", when, left, err, none)
	}
}

// refusedWhileUsed checks that the removal is refused while a container uses the image.
func refusedWhileUsed(t *testing.T, m *serviceManager, s *site.Site) {
	t.Helper()
	ref := site.Reference("python")
	c, err := s.Machine.StartContainer(t.Context(), site.Lighter, ref, "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	out, err := m.command(s, "uninstall", "containerd").CombinedOutput()
	want := "container " + c.ID + " (namespace " + s.Machine.Namespace() + ") of " + ref
	if err == nil || !strings.Contains(string(out), want) {
		t.Errorf("removal while a container runs: got %v, %s; want an error that names it", err, out)
	}
	// containerd removes the container's snapshot at its next garbage collection, which the removal
	// of the image waits for.
	if err := errors.Join(c.Remove(t.Context()), s.Machine.RemoveImage(t.Context(), ref)); err != nil {
		t.Fatal(err)
	}
}
