//go:build e2e

package containers

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"lighter/test/testkit/eventually"
)

// An OCI runtime runs a bundle, as often as it is asked to. What a container has written stays
// until the bundle is removed.
func TestBundle(t *testing.T) { withEachRuntime(t, testBundle) }

func testBundle(t *testing.T) {
	for _, with := range []func(*testing.T, string, ...string) result{run, alone} {
		dir, roots := filepath.Join(t.TempDir(), "a,b:c"), t.TempDir()
		with(t, "bundle", "--net", "none", "app:1", dir,
			"id -un; pwd; echo $GREETING; echo x >>/tmp/x; cat /tmp/x").gives(0)
		text, err := os.ReadFile(filepath.Join(dir, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		var config struct{ Annotations map[string]string }
		if err := json.Unmarshal(text, &config); err != nil || config.Annotations["vendor"] != "us" ||
			config.Annotations["org.opencontainers.image.stopSignal"] != "SIGQUIT" {
			t.Errorf("annotations %q, %v; want the image's labels", config.Annotations, err)
		}
		engine := func(id string) result {
			return execute(t, "", oci, "--root", roots, "run", "--bundle", dir, id)
		}
		engine("one").gives(0, "www-data", "/var/tmp", "hello", "x")
		engine("two").gives(0, "www-data", "/var/tmp", "hello", "x", "x")
		execute(t, "", lighter, "unbundle", dir).gives(0)
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", dir, err)
		}
		execute(t, "", lighter, "unbundle", dir).fails(1, "not a bundle")
	}
}

// A bundle in which a container runs stays. Directories with other files are not used.
func TestBundleInUse(t *testing.T) { withEachRuntime(t, testBundleInUse) }

func testBundleInUse(t *testing.T) {
	dir, roots := filepath.Join(t.TempDir(), "bundle"), t.TempDir()
	run(t, "bundle", "base:1", dir, "sleep", "infinity").gives(0)
	cmd := exec.Command(oci, "--root", roots, "run", "--bundle", dir, "one")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the container", func() bool {
		return exec.Command(oci, "--root", roots, "exec", "one", "true").Run() == nil
	})
	execute(t, "", lighter, "unbundle", dir).fails(1, "a container runs in")
	execute(t, "", oci, "--root", roots, "exec", "one", "echo", "alive").gives(0, "alive")
	if err := exec.Command(oci, "--root", roots, "kill", "one", "KILL").Run(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the process was killed
	execute(t, "", lighter, "unbundle", dir).gives(0)

	other := t.TempDir()
	file := filepath.Join(other, "config.json")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "bundle", "base:1", other).fails(1, "not empty")
	execute(t, "", lighter, "unbundle", other).fails(1, "not a bundle")
	if text, err := os.ReadFile(file); err != nil || string(text) != "mine" {
		t.Errorf("a file of somebody else is %q, %v", text, err)
	}
	// A bundle that cannot be made leaves nothing.
	missing := filepath.Join(t.TempDir(), "bundle")
	run(t, "bundle", "--user", "gone", "base:1", missing).fails(1, `user "gone"`)
	if _, err := os.Stat(missing); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", missing, err)
	}
}
