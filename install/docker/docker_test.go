package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/install"
	"lighter/install/jsontext"
	"lighter/node/doctor"
)

// fixture is a configuration of Docker in a directory of its own.
type fixture struct {
	t    *testing.T
	path string
	hub  string // which is to be asked before Docker Hub
}

func newFixture(t *testing.T, text string) *fixture {
	t.Helper()
	f := &fixture{t: t, path: filepath.Join(t.TempDir(), "daemon.json")}
	if text != "-" {
		f.write(text)
	}
	return f
}

func (f *fixture) write(text string) {
	f.t.Helper()
	if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// text returns the configuration; "-": there is none.
func (f *fixture) text() string {
	b, err := os.ReadFile(f.path)
	if err != nil {
		return "-"
	}
	return string(b)
}

func (f *fixture) install(args ...string) ([]install.Change, error) {
	c, err := read(f.path)
	if err != nil {
		return nil, err
	}
	wanted, err := c.withMirror(f.hub)
	if err != nil {
		return nil, err
	}
	return c.install(lackingIn(args, wanted))
}

func (f *fixture) uninstall() ([]install.Change, error) {
	c, err := read(f.path)
	return c.uninstall(), err
}

// apply carries out changes, and returns how many there were.
func (f *fixture) apply(changes []install.Change, err error) int {
	f.t.Helper()
	if err == nil {
		_, err = install.Machine{}.Apply(f.t.Context(), &install.Plan{Changes: changes}, install.Options{})
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return len(changes)
}

// alone checks that no other file is left beside the configuration.
func (f *fixture) alone() {
	f.t.Helper()
	left, err := filepath.Glob(f.path + "?*")
	if err != nil || len(left) > 0 {
		f.t.Errorf("files that are left: %v, %v", left, err)
	}
}

// configurations are as users have them.
var configurations = map[string]string{
	"none": "-", "empty": "", "a line": "\n", "no keys": "{}", "no keys, lines": "{\n}\n",
	"compact":     `{"data-root":"/data","features":{"containerd-snapshotter":false},"x":["storage-driver"]}`,
	"other":       "{\n  \"storage-driver\": \"overlay2\",\n  \"log-opts\": {\n    \"max-size\": \"10m\"\n  }\n}\n",
	"features":    "{\n\t\"features\": {\n\t\t\"cdi\": true\n\t},\n\t\"debug\": true\n}\n",
	"no features": "{\n    \"features\": {},\n    \"hosts\": [\"fd://\"]}",
	"CRLF":        "{\r\n  \"debug\": true\r\n}\r\n",
	"half":        `{"storage-driver": "lighter"}`,
}

// Each configuration gets the two keys, keeps the rest, and is byte for byte the original after the
// removal. A second installation changes nothing.
func TestConfigurations(t *testing.T) {
	for name, text := range configurations {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, text)
			f.apply(f.install())
			before, after := map[string]any{}, map[string]any{}
			_ = json.Unmarshal([]byte(text), &before) // some are no JSON
			if err := json.Unmarshal([]byte(f.text()), &after); err != nil {
				t.Fatalf("%v: %s", err, f.text())
			}
			features, _ := after["features"].(map[string]any)
			if after["storage-driver"] != "lighter" || features["containerd-snapshotter"] != true {
				t.Errorf("got %s, want both settings", f.text())
			}
			for key, value := range before {
				if key != "storage-driver" && key != "features" && fmt.Sprint(after[key]) != fmt.Sprint(value) {
					t.Errorf("got %s, want %s: %v", f.text(), key, value)
				}
			}
			if n := f.apply(f.install()); n != 0 {
				t.Errorf("a second installation makes %d changes, want none", n)
			}
			if f.apply(f.uninstall()); f.text() != text {
				t.Errorf("after the removal: got %q, want %q", f.text(), text)
			}
			f.alone()
			if n := f.apply(f.uninstall()); n != 0 {
				t.Errorf("a second removal makes %d changes, want none", n)
			}
		})
	}
}

// What somebody changes after the installation stays.
func TestChangedSince(t *testing.T) {
	for text, want := range map[string]string{
		"-":                                  "{\n  \"debug\": true\n}\n",
		"{}\n":                               "{\n  \"debug\": true\n}\n",
		"{\"storage-driver\": \"overlay2\"}": "{\"storage-driver\": \"overlay2\", \"debug\": true}",
	} {
		f := newFixture(t, text)
		f.apply(f.install())
		changed := map[string]any{}
		if err := json.Unmarshal([]byte(f.text()), &changed); err != nil {
			t.Fatal(err)
		}
		changed["debug"] = true
		b, err := json.Marshal(changed)
		if err != nil {
			t.Fatal(err)
		}
		f.write(string(b))
		f.apply(f.uninstall())
		got, wanted := map[string]any{}, map[string]any{}
		if err := errors.Join(json.Unmarshal([]byte(f.text()), &got),
			json.Unmarshal([]byte(want), &wanted)); err != nil || fmt.Sprint(got) != fmt.Sprint(wanted) {
			t.Errorf("%q: after the removal: got %s, %v; want %s", text, f.text(), err, want)
		}
		f.alone()
	}
	// A storage driver that the user has chosen since is the user's.
	f := newFixture(t, "-")
	f.apply(f.install())
	f.write(strings.Replace(f.text(), `"lighter"`, `"btrfs"`, 1))
	if f.apply(f.uninstall()); f.text() != "{\n  \"storage-driver\": \"btrfs\"\n}\n" {
		t.Errorf("got %q, want the user's storage driver", f.text())
	}
	// A file that was removed stays away.
	f.apply(f.install())
	if err := os.Remove(f.path); err != nil {
		t.Fatal(err)
	}
	if f.apply(f.uninstall()); f.text() != "-" {
		t.Errorf("got %q, want no file", f.text())
	}
	f.alone()
}

// A crash between the two files is repaired by the next installation, or the removal.
func TestCrashBetweenTheFiles(t *testing.T) {
	const text = "{\"debug\": true}"
	for _, finish := range []bool{true, false} {
		f := newFixture(t, text)
		changes, err := f.install()
		if len(changes) != 2 {
			t.Fatalf("got %d changes, want two", len(changes))
		}
		f.apply(changes[:1], err)
		if finish {
			f.apply(f.install())
		}
		if f.apply(f.uninstall()); f.text() != text {
			t.Errorf("after a crash: got %q, want %q", f.text(), text)
		}
		f.alone()
	}
}

// What the user has set already is not set again, and is not removed.
func TestConfiguredByHand(t *testing.T) {
	const text = `{"features": {"containerd-snapshotter": true}, "storage-driver": "lighter"}`
	f := newFixture(t, text)
	if n := f.apply(f.install()) + f.apply(f.uninstall()); n != 0 || f.text() != text {
		t.Errorf("got %d changes and %q, want none", n, f.text())
	}
	f = newFixture(t, "-")
	for _, args := range [][]string{{"-s", "lighter", "--feature", "containerd-snapshotter"},
		{"--storage-driver=lighter", "--feature=containerd-snapshotter=true"}} {
		if n := f.apply(f.install(args...)); n != 0 || f.text() != "-" {
			t.Errorf("with the flags %q: got %q, want no file", args, f.text())
		}
	}
}

func TestRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"{\"a\": 1,}":             "no valid JSON: line 1",
		"{\n\"a\": 1,\n\"a\": 2}": "line 3: the key \"a\" occurs twice",
		"[]":                      "no object",
		"{\"features\": true}":    "features is no object",
		"\ufeff{}":                "no valid JSON",
		"// mine\n{}":             "no valid JSON: line 1",
	} {
		refused := (*install.Refused)(nil)
		if _, err := newFixture(t, text).install(); !errors.As(err, &refused) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(refused.Lines, "storage-driver") {
			t.Errorf("%q: got %v, want a refusal with %q, and lines to insert", text, err, want)
		}
	}
	f := newFixture(t, "{}")
	for _, args := range [][]string{{"-H", "fd://", "-s", "overlay2"}, {"--storage-driver=btrfs"},
		{"--feature", "cdi"}} {
		if _, err := f.install(args...); err == nil || !strings.Contains(err.Error(), "take the flag out") {
			t.Errorf("dockerd %q: got %v, want a refusal", args, err)
		}
	}
	f.apply(f.install())
	if err := os.WriteFile(recordOf(f.path), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := f.uninstall(); err == nil || !strings.Contains(err.Error(), "no record") {
		t.Errorf("a broken record: got %v, want a refusal", err)
	}
	if err := os.Chmod(f.path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := f.install(); err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("a file that all may write: got %v, want a refusal", err)
	}
}

// What was set is taken out also after Docker was removed.
func TestUninstallWithoutDocker(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	f := newFixture(t, `{"debug": true}`)
	f.apply(f.install())
	target := &Target{Machine: install.Machine{System: t.TempDir()}, Config: f.path,
		Socket: filepath.Join(t.TempDir(), "none.sock")}
	if _, err := target.Install(t.Context()); err == nil {
		t.Error("an installation without Docker: got no error")
	}
	plan, err := target.Uninstall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if f.apply(plan.Changes, nil); f.text() != `{"debug": true}` {
		t.Errorf("got %s", f.text())
	}
	f.alone()
}

// A Docker that cannot use the node is refused before anything changes.
func TestUnsuitable(t *testing.T) {
	f := newFixture(t, `{"userns-remap": "default"}`)
	c, err := read(f.path)
	if err != nil {
		t.Fatal(err)
	}
	target := &Target{Containerd: "/nonexistent/containerd.sock"}
	own := struct{ Address string }{"/run/docker/containerd/containerd.sock"}
	for want, d := range map[string]doctor.Docker{
		"rootless":        {DockerInfo: doctor.DockerInfo{SecurityOptions: []string{"name=rootless"}}},
		"userns-remap is": {},
	} {
		if err := target.suitable(t.Context(), d, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	for want, d := range map[string]doctor.Docker{
		"userns-remap is": {Args: []string{"--userns-remap=default"}},
		own.Address:       {DockerInfo: doctor.DockerInfo{Containerd: own}},
		"find Docker's":   {Args: []string{"--containerd", "/nonexistent/containerd.sock"}},
	} {
		if err := target.suitable(t.Context(), d, config{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	running := doctor.Docker{DockerInfo: doctor.DockerInfo{ContainersRunning: 2, LiveRestoreEnabled: true}}
	if err := target.idle(running, true); err == nil || !strings.Contains(err.Error(), "2 containers") {
		t.Errorf("while containers run: got %v, want an error", err)
	}
	if err := target.idle(running, false); err != nil {
		t.Errorf("if the storage driver stays: got %v, want no error", err)
	}
}

// The arguments of a Docker that does not run are those of its service.
func TestServiceArguments(t *testing.T) {
	dir := t.TempDir()
	m := install.Machine{System: filepath.Join(dir, "root")}
	const script = "#!/bin/sh\necho '{ path=/usr/bin/dockerd ; argv[]=/usr/bin/dockerd -H fd:// $OPTIONS " +
		"--config-file=/data/d.json ; ignore_errors=no ; start_time=[n/a] }'\n"
	const version = "#!/bin/sh\necho 'Docker version 20.10.24+dfsg1, build 297e128'\n"
	if err := errors.Join(os.MkdirAll(m.Path("run/systemd/system"), 0o755),
		os.WriteFile(filepath.Join(dir, "systemctl"), []byte(script), 0o755),
		os.WriteFile(filepath.Join(dir, "dockerd"), []byte(version), 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	target := &Target{Machine: m, Socket: filepath.Join(dir, "none.sock")}
	if args := target.unitArgs(t.Context()); fmt.Sprint(args) != "[-H fd:// --config-file=/data/d.json]" {
		t.Errorf("got the arguments %q", args)
	}
	if _, err := target.find(t.Context()); err == nil || !strings.Contains(err.Error(), "20.10.24+dfsg1 is too old") {
		t.Errorf("an old Docker: got %v, want an error that names its version", err)
	}
}

// The notes name what Docker does not show any more, and a setting of the node that is missing.
func TestNotes(t *testing.T) {
	old := doctor.Docker{Running: true, DockerInfo: doctor.DockerInfo{Driver: "overlay2", Images: 12,
		DockerRootDir: "/data"}}
	all := strings.Join((&Target{}).notes(old), "\n")
	for _, want := range []string{"the 12 images", "overlay2 stay in /data", `blob_namespaces = ["moby"]`} {
		if !strings.Contains(all, want) {
			t.Errorf("got the notes\n%s\nwant %q", all, want)
		}
	}
	old.Driver, old.DriverStatus = driver, [][2]string{{"driver-type", "io.containerd.snapshotter.v1"}}
	if got := (&Target{Blobs: []string{"k8s.io", "moby"}}).notes(old); len(got) != 1 {
		t.Errorf("a Docker that uses the node: got %q, want one note", got)
	}
	old.Args = []string{"--containerd-namespace=other"}
	if got := (&Target{Blobs: []string{"moby"}}).notes(old); len(got) != 2 || !strings.Contains(got[1], `["other"]`) {
		t.Errorf("a Docker in a namespace of its own: got %q, want that namespace", got)
	}
}

// The hub comes before the mirrors of the user. A run without the hub takes it out again, and the
// removal restores the file byte for byte.
func TestMirror(t *testing.T) {
	const hub = "https://docker-mirror.example.org"
	for text, want := range map[string]string{
		"-":  `["https://docker-mirror.example.org"]`,
		"{}": `["https://docker-mirror.example.org"]`,
		"{\n  \"debug\": true,\n  \"registry-mirrors\": [ \"https://cache.example.org\" ]\n}\n": `["` + hub +
			`","https://cache.example.org"]`,
		`{"registry-mirrors": ["https://cache.example.org", "https://docker-mirror.example.org/"]}`: `["` + hub +
			`","https://cache.example.org"]`,
	} {
		f := newFixture(t, text)
		f.hub = hub
		f.apply(f.install())
		got, err := jsontext.Lookup([]byte(f.text()), "registry-mirrors")
		if err != nil || string(got) != want {
			t.Errorf("%s: got the mirrors %s, %v; want %s", text, got, err, want)
		}
		if n := f.apply(f.install()); n != 0 {
			t.Errorf("%s: a second installation makes %d changes, want none", text, n)
		}
		f.hub = ""
		f.apply(f.install())
		if text == "{}" && strings.Contains(f.text(), "mirror") {
			t.Errorf("%s: without the hub: got %s", text, f.text())
		}
		f.hub = hub
		f.apply(f.install())
		if f.apply(f.uninstall()); f.text() != text {
			t.Errorf("after the removal: got %q, want %q", f.text(), text)
		}
		f.alone()
	}
	f := newFixture(t, "{}")
	f.hub = hub
	if _, err := f.install("--registry-mirror=https://cache.example.org"); err == nil ||
		!strings.Contains(err.Error(), "--registry-mirror") {
		t.Errorf("a flag of dockerd is in the way: %v", err)
	}
	f.write(`{"registry-mirrors": "https://cache.example.org"}`)
	if _, err := f.install(); err == nil {
		t.Error("mirrors that are no list were accepted")
	}
}
