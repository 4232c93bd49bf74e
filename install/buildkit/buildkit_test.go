package buildkit

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"lighter/install"
	"lighter/node/front/containerd"
)

// newTarget returns a target for a buildkitd that does not run, with a configuration, and a node
// that listens. "-": there is no configuration, and no directory for it.
func newTarget(t *testing.T, text string) *Target {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "buildkitd"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	target := &Target{Machine: install.Machine{System: dir}, Socket: filepath.Join(dir, "none.sock"),
		Config: filepath.Join(dir, "etc", "buildkitd.toml"), Root: dir}
	listener, err := net.Listen("unix", containerd.BuildKitSocket(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	if text == "-" {
		return target
	}
	if err := os.Mkdir(filepath.Dir(target.Config), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(target.Config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return target
}

// apply carries out a plan, and returns the configuration after it; "-": there is none.
func (t *Target) apply(test *testing.T, plan *install.Plan, err error) string {
	test.Helper()
	if err == nil {
		_, err = t.Machine.Apply(test.Context(), plan, install.Options{})
	}
	if err != nil {
		test.Fatal(err)
	}
	text, err := os.ReadFile(t.Config)
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(filepath.Dir(t.Config)); err != nil {
			return "-"
		}
	}
	if err != nil {
		test.Fatal(err)
	}
	return string(text)
}

// Install adds the two keys, wherever the table is, and Uninstall restores the file byte for byte.
// A second installation changes nothing.
func TestInstallIsUndone(t *testing.T) {
	for _, text := range []string{"-", "", "# mine\n", "debug = true",
		"[worker.oci]\n  gc = false # why\n\n[registry.x]\n",
		"[worker]\n[worker.containerd]\nenabled = false\n", "[[worker.oci.gcpolicy]]\nall = true\n",
		"[worker.oci]\nsnapshotter = 'overlayfs' # fast\n[[worker.oci.gcpolicy]]\nall = true\n"} {
		target := newTarget(t, text)
		plan, err := target.Install(t.Context())
		with := target.apply(t, plan, err)
		for _, line := range []string{"snapshotter = 'stargz'", "proxySnapshotterPath = '" +
			containerd.BuildKitSocket(target.Root) + "'"} {
			if !strings.Contains(with, line) {
				t.Errorf("%q: the installation wrote %q, want %q in it", text, with, line)
			}
		}
		if plan, err = target.Install(t.Context()); err != nil || len(plan.Changes) > 0 {
			t.Errorf("%q: a second installation: %v, %v; want no change", text, plan, err)
		}
		if strings.Contains(text, "enabled") { // undone also after buildkitd was removed
			t.Setenv("PATH", t.TempDir())
			if _, err := target.Install(t.Context()); err == nil {
				t.Error("an installation without buildkitd: got no error")
			}
		}
		plan, err = target.Uninstall(t.Context())
		if got := target.apply(t, plan, err); got != text {
			t.Errorf("%q: after install and uninstall: %q", text, got)
		}
	}
}

// A configuration with which buildkitd would not use the node, or not start, is refused. Nothing is
// changed.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"worker = {oci = {gc = false}}\n":  "is not edited",
		"debug = = true\n":                 "no valid TOML",
		"[worker.oci]\nenabled = false\n":  "OCI worker of this buildkitd is off",
		"[worker.oci]\nrootless = true\n":  "rootless",
		"# >>> lighter install buildkit\n": "is not edited",
	} {
		target := newTarget(t, text)
		_, err := target.Install(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got error %v, want one line with %q", text, err, want)
		}
	}
	target := newTarget(t, "")
	target.Root = t.TempDir()
	if _, err := target.Install(t.Context()); err == nil || !strings.Contains(err.Error(), "start the node first") {
		t.Errorf("without a node: got error %v", err)
	}
}

// A broken answer of buildkitd is an error.
func TestBrokenAnswer(t *testing.T) {
	whole := protowire.AppendBytes(protowire.AppendTag(nil, labelField, protowire.BytesType), []byte("value"))
	for end := 1; end < len(whole); end++ {
		if err := fields(whole[:end], labelField, func([]byte) error { return nil }); err == nil {
			t.Errorf("%d of %d bytes: got no error", end, len(whole))
		}
	}
}
