//go:build e2e

package hubs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lighter/install"
	"lighter/install/pullthrough"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// registryHost is HOST:PORT of the site's registry.
var registryHost = strings.TrimSuffix(site.Reference(""), "/:latest")

// An image that the hub has never seen is pulled through it by containerd, as hosts.toml says, and
// starts lazily on the next node, while its registry is away. Podman then pulls it through the hub,
// too, as registries.conf says. Both files are those that lighter install writes.
func TestPullThrough(t *testing.T) {
	s := start(t, site.Options{Isolated: true},
		fmt.Sprintf("[[registry]]\nhost = %q\nprivate = true\nplain_http = true\npull_through = true\n"+
			"tag_seconds = 3600\n", registryHost))
	const name = "through"
	if err := s.Push(t.Context(), image(t, 0, 4), name); err != nil {
		t.Fatal(err)
	}
	hosts := filepath.Join(t.TempDir(), "hosts")
	dir := filepath.Join(hosts, registryHost)
	text := fmt.Sprintf("server = \"http://%s\"\n", registryHost)
	if err := errors.Join(os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	mirror := pullthrough.Hub{URL: s.Hub.URL, Registries: []string{registryHost}}
	write := func(changes []install.Change, err error) {
		t.Helper()
		if err == nil {
			_, err = install.Machine{}.Apply(t.Context(), &install.Plan{Changes: changes}, install.Options{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write(mirror.Containerd(hosts))
	ref := site.Reference(name)
	pull := []string{"images", "pull", "--hosts-dir", hosts, "--snapshotter"}
	if _, err := s.Machine.CtrIn(t.Context(), "first", append(pull, site.Overlayfs, ref)...); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, ref+" to be ready", func() bool { return isReady(t, s.Hub, ref) })
	if err := s.StopRegistry(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Machine.Ctr(t.Context(), append(pull, site.Lighter, ref)...); err != nil {
		t.Fatal(err)
	}
	c, err := s.Machine.StartContainer(t.Context(), site.Lighter, ref, "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	reads(t, c, 0, 4)
	lazy := false
	for _, i := range sitetest.Status(t, s).Images {
		lazy = lazy || i.Image == ref && i.Lazy
	}
	if !lazy {
		t.Errorf("%s is not lazy on the second node", ref)
	}

	conf := filepath.Join(t.TempDir(), "registries.conf.d")
	write(mirror.Podman(conf))
	own := filepath.Join(conf, "lighter-hub.conf")
	newPodman(t)([]string{"CONTAINERS_REGISTRIES_CONF=" + own}, "pull", "--quiet", ref)
}

// hostsDir writes containerd's configuration of the site's registry, which has capabilities of
// another host, and returns its directory.
func hostsDir(t *testing.T, host string, capabilities ...string) string {
	t.Helper()
	hosts := t.TempDir()
	dir := filepath.Join(hosts, registryHost)
	text := fmt.Sprintf("server = \"http://%s\"\n\n[host.%q]\n  capabilities = [\"%s\"]\n  dial_timeout = \"1s\"\n",
		registryHost, host, strings.Join(capabilities, `", "`))
	if err := errors.Join(os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	return hosts
}

// newPodman returns a function that runs podman with a storage directory of its own, and returns
// what it prints.
func newPodman(t *testing.T) func(env []string, args ...string) string {
	t.Helper()
	storage, err := os.MkdirTemp("/run", "podman-") // podman requires a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(os.RemoveAll(storage), os.RemoveAll(storage+"r")); err != nil {
			t.Error(err)
		}
	})
	return func(env []string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "podman", append([]string{"--runtime", "runc", "--root", storage,
			"--runroot", storage + "r", "--storage-driver", "vfs", "--events-backend", "none",
			"--cgroup-manager", "cgroupfs"}, args...)...)
		cmd.Env = append(os.Environ(), env...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("podman %s: %v: %s", args[0], err, stderr.String())
		}
		return strings.TrimSpace(string(out))
	}
}
