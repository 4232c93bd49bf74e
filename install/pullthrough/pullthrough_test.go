package pullthrough

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"lighter/install"
)

const hubURL = "https://hub.example.org:7070"

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// read returns a file's text; "-": there is none.
func read(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "-"
	}
	return string(b)
}

// apply carries out changes, and returns how many there were.
func apply(t *testing.T, changes []install.Change, err error) int {
	t.Helper()
	if err == nil {
		_, err = install.Machine{}.Apply(t.Context(), &install.Plan{Changes: changes}, install.Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		if !c.Live {
			t.Errorf("the change of %s needs a restart", c.Path)
		}
	}
	return len(changes)
}

// The hub comes before all hosts of a file, the rest stays, and the removal restores the file byte
// for byte.
func TestContainerd(t *testing.T) {
	hub := Hub{hubURL, []string{"registry.example.org:5000"}}
	for name, text := range map[string]string{
		"no file":  "-",
		"empty":    "",
		"a server": "# ours\nserver = \"https://registry.example.org:5000\" # TLS\n",
		"no end":   "server = \"https://registry.example.org:5000\"",
		"a mirror": "server = \"https://x\"\n\n# our cache\n[host.\"https://cache\"]\n" +
			"  capabilities = [\"pull\"] # only\n",
		"only host": "[host.\"https://cache\"]\r\n  capabilities = [\"pull\"]\r\n",
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "registry.example.org:5000", "hosts.toml")
		other := filepath.Join(dir, "other.example.org", "hosts.toml")
		write(t, other, "server = ")
		if text != "-" {
			write(t, path, text)
		}
		plan := func(h Hub) int {
			t.Helper()
			changes, err := h.Containerd(dir)
			return apply(t, changes, err)
		}
		plan(hub)
		var got struct {
			Host map[string]struct {
				Capabilities []string
				DialTimeout  string `toml:"dial_timeout"`
			}
		}
		now := read(path)
		if err := toml.Unmarshal([]byte(now), &got); err != nil {
			t.Fatalf("%s: %v: %s", name, err, now)
		}
		table := got.Host[hubURL]
		if strings.Join(table.Capabilities, " ") != "pull resolve" || table.DialTimeout != "1s" {
			t.Errorf("%s: got %s, want the hub", name, now)
		}
		if at := strings.Index(now, "https://cache"); at >= 0 && at < strings.Index(now, hubURL) {
			t.Errorf("%s: got %s, want the hub first", name, now)
		}
		if n := plan(hub); n != 0 {
			t.Errorf("%s: a second run makes %d changes, want none", name, n)
		}
		moved := hub
		moved.Registries = []string{"docker.io"}
		if n := plan(moved); n != 2 || read(path) != text {
			t.Errorf("%s: with another registry: %d changes, and %q, want 2 and %q", name, n, read(path), text)
		}
		plan(hub)
		plan(Hub{})
		if read(path) != text || read(filepath.Join(dir, "docker.io", "hosts.toml")) != "-" {
			t.Errorf("%s: after the removal: got %q, want %q", name, read(path), text)
		}
		if read(other) != "server = " {
			t.Errorf("%s: the file of another registry is %q", name, read(other))
		}
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "registry.example.org:5000", "hosts.toml")
	changes, err := hub.Containerd(dir)
	apply(t, changes, err)
	write(t, path, read(path)+"[host\n")
	if _, err := (Hub{}).Containerd(dir); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("the removal from a broken file: %v; want that it is refused", err)
	}
	theirs := "[host.\"" + hubURL + "\"]\n  capabilities = [\"pull\"]\n"
	write(t, path, theirs)
	if changes, err := hub.Containerd(dir); len(changes) > 0 || err != nil {
		t.Errorf("a file that has the hub: %+v, %v; want no change", changes, err)
	}
	write(t, path, theirs+"[host.\"https://cache\"]\n")
	if _, err := hub.Containerd(dir); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a file that has the hub and others: %v; want that it is refused", err)
	}
}

// Podman gets one file, and it goes with the removal. A registry that another file is about is
// refused.
func TestPodman(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "containers", "registries.conf.d")
	hub := Hub{"http://hub.example.org:7070", []string{"docker.io", "registry.example.org:5000"}}
	plan := func(h Hub) int {
		t.Helper()
		changes, err := h.Podman(dir)
		return apply(t, changes, err)
	}
	write(t, filepath.Join(filepath.Dir(dir), "registries.conf"), "unqualified-search-registries = [\"docker.io\"]\n")
	plan(hub)
	var got struct {
		Registry []struct {
			Location string
			Mirror   []struct {
				Location string
				Insecure bool
			}
		}
	}
	path := filepath.Join(dir, "lighter-hub.conf")
	if err := toml.Unmarshal([]byte(read(path)), &got); err != nil || len(got.Registry) != 2 {
		t.Fatalf("%v: %s, want two registries", err, read(path))
	}
	for i, want := range []string{"hub.example.org:7070/docker.io", "hub.example.org:7070/registry.example.org_5000"} {
		r := got.Registry[i]
		if r.Location != hub.Registries[i] || len(r.Mirror) != 1 || r.Mirror[0].Location != want ||
			!r.Mirror[0].Insecure {
			t.Errorf("got %+v, want the mirror %s", r, want)
		}
	}
	if n := plan(hub); n != 0 {
		t.Errorf("a second run makes %d changes, want none", n)
	}
	if plan(Hub{}); read(path) != "-" {
		t.Errorf("after the removal: got %q, want no file", read(path))
	}
	for _, file := range []string{filepath.Join(dir, "50-ours.conf"), strings.TrimSuffix(dir, ".d")} {
		write(t, file, "[[registry]]\nprefix = \"docker.io\"\nlocation = \"cache.example.org\"\n")
		if _, err := hub.Podman(dir); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s is about docker.io: %v; want that it is refused", file, err)
		}
		write(t, file, "")
	}
}

func TestInvalidHubs(t *testing.T) {
	for want, hub := range map[string]Hub{
		"":                       {hubURL, []string{"docker.io", "localhost:5000"}},
		`URL "hub.example.org"`:  {"hub.example.org", []string{"docker.io"}},
		`URL "https://h/path"`:   {"https://h/path", []string{"docker.io"}},
		`URL "https://u:p@h"`:    {"https://u:p@h", []string{"docker.io"}},
		`no registry`:            {hubURL, nil},
		`registry "debian"`:      {hubURL, []string{"debian"}},
		`registry "x.org/team"`:  {hubURL, []string{"x.org/team"}},
		`registry "../x.org"`:    {hubURL, []string{"../x.org"}},
		`registry "Docker.io"`:   {hubURL, []string{"Docker.io"}},
		`registry "https://x.y"`: {hubURL, []string{"https://x.y"}},
	} {
		if err := hub.Check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", hub, err, want)
		}
	}
}
