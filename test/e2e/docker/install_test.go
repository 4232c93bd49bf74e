//go:build runtimes

package docker

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/install"
	"lighter/node/doctor"
	"lighter/test/testkit/site"
	"lighter/test/testkit/systemctl"
)

// before is the configuration of a Docker that does not use the node yet.
const before = "{\n\t\"bridge\": \"none\", \"iptables\": false, \"ip6tables\": false, \"userland-proxy\": false,\n" +
	"\t\"insecure-registries\": [\"" + site.HubIP + "/32\"],\n" +
	"\t\"features\": {\n\t\t\"containerd-snapshotter\": false\n\t},\n\t\"storage-driver\": \"vfs\"\n}"

// Docker gets the node as its storage driver, and a hub as the mirror of Docker Hub, and gets its
// own configuration back. If it does not come back, it gets its previous configuration.
func TestInstallDocker(t *testing.T) {
	s := shared.Site
	e, err := newEngine(s, filepath.Join(s.Dir, "other"), before, "--containerd-namespace", "other")
	if err == nil {
		err = e.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	fails := false
	programs := systemctl.New(t, func(unit string) error {
		if fails {
			fails = false
			return errors.New("it does not start")
		}
		if unit != "docker.service" {
			return errors.New("want docker.service")
		}
		return errors.Join(e.Daemon.Stop(), e.Start(t.Context()))
	})
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	command := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), lighter, append(args, "--docker", e.Socket(),
			"--containerd", s.Machine.ContainerdSocket(), "--json")...)
		cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	report := func(args ...string) (r install.Report) {
		t.Helper()
		out, err := command(args...)
		if err == nil {
			err = json.Unmarshal([]byte(out), &r)
		}
		if err != nil {
			t.Fatalf("lighter %q: %v: %s", args, err, out)
		}
		return r
	}
	has := func(when, driver, text string) {
		t.Helper()
		var info struct{ Driver string }
		e.get(t, "/info", &info)
		config, err := os.ReadFile(e.Config())
		_, none := os.Stat(e.Config() + ".lighter")
		if err != nil || info.Driver != driver || text != "" && (string(config) != text || none == nil) {
			t.Errorf("%s: the storage driver is %s, the configuration (%v) is\n%s\nwant %s, and\n%s\nwithout a record",
				when, info.Driver, err, config, driver, text)
		}
	}

	// What dockerd does not accept is not written.
	broken := strings.Replace(before, `"bridge"`, `"nonsense": 1, "bridge"`, 1)
	if err := os.WriteFile(e.Config(), []byte(broken), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := command("install", "docker", "--restart"); err == nil || !strings.Contains(out, "nonsense") ||
		!strings.Contains(out, "nothing was changed") {
		t.Errorf("a key that dockerd does not know: got %v, %s; want dockerd's error", err, out)
	}
	has("after an error of dockerd", "vfs", broken)
	if err := os.WriteFile(e.Config(), []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}

	if r := report("install", "docker", "--dry-run"); len(r.Files) != 2 || !r.DryRun || len(r.Notes) != 3 {
		t.Errorf("--dry-run: got %+v, want two files, and three notes", r)
	}
	fails = true
	if out, err := command("install", "docker", "--restart"); err == nil ||
		!strings.Contains(out, "the previous configuration is in place again") {
		t.Errorf("a failed restart: got %v, %s; want an error about the previous configuration", err, out)
	}
	has("after a failed restart", "vfs", before)
	if r := report("install", "docker", "--restart"); len(r.Done) != 1 || len(r.Next) != 0 {
		t.Errorf("the installation: got %+v, want a restart", r)
	}
	has("after the installation", site.Lighter, "")
	if r := report("install", "docker", "--restart"); len(r.Done)+len(r.Files)+len(r.Next) != 0 {
		t.Errorf("a second installation: got %+v, want nothing done", r)
	}
	examined(t, e, doctor.OK, "uses the node")

	ref := site.Reference("base")
	e.pull(t, ref)
	c := e.create(t, ref, "sleep", "infinity")
	c.start(t)
	if out, err := command("uninstall", "docker"); err == nil || !strings.Contains(out, "1 containers of Docker run") {
		t.Errorf("the removal while a container runs: got %v, %s; want an error", err, out)
	}
	if err := c.remove(t.Context()); err != nil {
		t.Error(err)
	}
	e.prune(t)
	const mirror = "https://docker-mirror.example.org"
	if r := report("install", "docker", "--pull-through", mirror, "--restart"); len(r.Files) != 2 || len(r.Done) != 1 {
		t.Errorf("with --pull-through: got %+v, want two files and a restart", r)
	}
	var info struct{ RegistryConfig struct{ Mirrors []string } }
	if e.get(t, "/info", &info); !slices.Equal(info.RegistryConfig.Mirrors, []string{mirror + "/"}) {
		t.Errorf("with --pull-through, Docker has the mirrors %q, want %s", info.RegistryConfig.Mirrors, mirror)
	}
	if r := report("uninstall", "docker", "--restart"); len(r.Files) != 2 || len(r.Done) != 1 {
		t.Errorf("the removal: got %+v, want two files and a restart", r)
	}
	has("after the removal", "vfs", before)
	examined(t, e, doctor.OK, "its images are not lazy")
}

// examined checks what `lighter doctor` says of an engine.
func examined(t *testing.T, e engine, level doctor.Level, what string) {
	t.Helper()
	if err := os.Symlink(e.Socket(), doctor.DockerSocket); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(doctor.DockerSocket)
	out, err := e.Site.Machine.Lighter(t.Context(), "doctor", "--json", "--containerd",
		e.Site.Machine.ContainerdSocket())
	var findings []doctor.Finding
	if text := strings.TrimSpace(out); json.Unmarshal([]byte(text), &findings) != nil || !slices.ContainsFunc(findings,
		func(f doctor.Finding) bool {
			return f.Area == "docker" && f.Level == level && strings.Contains(f.What, what)
		}) {
		t.Errorf("lighter doctor (%v): got\n%s\nwant %s: %s", err, out, level, what)
	}
}
