//go:build e2e

package system

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lighter/node/doctor"
	"lighter/test/testkit/site"
)

// examine runs the doctor on the machine, and returns its findings and its exit code.
func examine(t *testing.T, s *site.Site, args ...string) ([]doctor.Finding, int) {
	t.Helper()
	dir := filepath.Dir(s.Machine.NodeRoot())
	if !slices.Contains(args, "--hub-key") {
		args = append(args, "--hub-key", s.Hub.Key)
	}
	out, err := s.Machine.Lighter(t.Context(), "doctor", append([]string{"--json", "--plain-http", "--hub", s.Hub.URL,
		"--address", filepath.Join(dir, "lighter.sock"), "--containerd", filepath.Join(dir, "containerd.sock")},
		args...)...)
	code := 0
	if err != nil && strings.Contains(err.Error(), "there are problems") {
		code = 3
	} else if err != nil {
		t.Fatal(err)
	}
	var findings []doctor.Finding
	if err := json.Unmarshal([]byte(out), &findings); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return findings, code
}

// finds checks that there is a finding of a level in an area that contains words, and that says how
// to repair the problem.
func finds(t *testing.T, findings []doctor.Finding, area string, level doctor.Level, words string) {
	t.Helper()
	for _, f := range findings {
		if f.Area == area && f.Level == level && strings.Contains(f.What, words) && f.Repair != "" {
			return
		}
	}
	t.Errorf("want a finding %q in area %s with %q and a repair; the findings are\n%s", level, area, words,
		listed(findings))
}

// listed returns the findings as text, one on a line.
func listed(findings []doctor.Finding) string {
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%s %s: %s\n", f.Level, f.Area, f.What)
	}
	return b.String()
}

// On a healthy machine the doctor finds no problem. It finds each problem that the test makes, and
// says how to repair it. Its probes leave nothing behind.
func TestDoctor(t *testing.T) {
	s := start(t, site.Options{}, "+base")
	pull(t, s, site.Lighter, "base")
	root := s.Machine.NodeRoot()
	findings, code := examine(t, s)
	for _, f := range findings {
		// This host's disk may be nearly full, so a warning about the disk is allowed.
		if f.Area != "disk" && f.Level != doctor.OK || f.Level == doctor.Problem {
			t.Errorf("finding on a healthy machine: %+v", f)
		}
	}
	for _, area := range []string{"kernel", "root", "disk", "hub", "node", "cache", "containerd"} {
		if !slices.ContainsFunc(findings, func(f doctor.Finding) bool { return f.Area == area }) {
			t.Errorf("got no finding in area %s, want one", area)
		}
	}
	if code != 0 {
		t.Errorf("exit code on a healthy machine: got %d, want 0; findings:\n%s", code, listed(findings))
	}
	for _, pattern := range []string{root + "/doctor-*", filepath.Dir(root) + "/doctor-*"} {
		if names, err := filepath.Glob(pattern); err != nil || len(names) > 0 {
			t.Errorf("files that the doctor's probes have left: %v (%v), want none", names, err)
		}
	}

	t.Run("plugin", func(t *testing.T) {
		file := filepath.Join(filepath.Dir(root), "containerd.toml")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		defer os.WriteFile(file, text, 0o644)
		broken := strings.ReplaceAll(strings.ReplaceAll(string(text), "[proxy_plugins.lighter", "[proxy_plugins.lazy"),
			`snapshotter = "lighter"`, `snapshotter = "lazy"`)
		if err := os.WriteFile(file, []byte(broken), 0o644); err != nil {
			t.Fatal(err)
		}
		findings, code := examine(t, s)
		finds(t, findings, "containerd", doctor.Problem, "is called lazy")
		finds(t, findings, "containerd", doctor.Problem, "no unpack_config for lighter")
		if code != 3 {
			t.Errorf("exit code: got %d, want 3", code)
		}
	})
	t.Run("owner", func(t *testing.T) {
		defer os.Chown(root, 0, 0)
		if err := os.Chown(root, 65534, 0); err != nil {
			t.Fatal(err)
		}
		findings, _ := examine(t, s)
		finds(t, findings, "root", doctor.Problem, "users other than root can write")
	})
	t.Run("full disk", func(t *testing.T) {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m,mode=700"); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(dir, unix.MNT_DETACH)
		if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, 60<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		findings, _ := examine(t, s, "--root", dir)
		finds(t, findings, "disk", doctor.Problem, "the disk is full")
		finds(t, findings, "disk", doctor.Warning, "tmpfs")
		finds(t, findings, "node", doctor.Problem, "no node runs")
	})
	t.Run("not root", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), "setpriv", "--reuid=65534", "--clear-groups", binary(t), "doctor",
			"--root", root).CombinedOutput()
		if !strings.Contains(string(out), "unchecked") || !strings.Contains(string(out), "sudo lighter doctor") {
			t.Errorf("the doctor without root: %v: %s\nwant \"unchecked\" and \"sudo lighter doctor\"", err, out)
		}
	})
	if err := s.Machine.StopNode(); err != nil {
		t.Fatal(err)
	}
	t.Run("no node", func(t *testing.T) {
		findings, code := examine(t, s)
		finds(t, findings, "node", doctor.Problem, "no node runs")
		finds(t, findings, "containerd", doctor.Problem, "no node listens")
		if code != 3 {
			t.Errorf("exit code: got %d, want 3", code)
		}
	})
	t.Run("wrong key", func(t *testing.T) {
		findings, _ := examine(t, s, "--hub-key", "ed25519:"+strings.Repeat("A", 43)+"=")
		finds(t, findings, "hub", doctor.Problem, "not pinned")
	})
	t.Run("one hub of two", func(t *testing.T) {
		findings, _ := examine(t, s, "--hub", "http://10.64.0.1:7")
		finds(t, findings, "hub", doctor.Warning, "refused")
	})
	if err := s.Machine.StartNode(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}
