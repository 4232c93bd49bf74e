package registries

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
)

// The most specific table of a host is used. A * of a pattern stays within one label.
func TestTables(t *testing.T) {
	t.Parallel()
	tables := []Registry{{Host: "*.example.org"}, {Host: "a.example.org"}, {Host: "a.example.org:5000"},
		{Host: "*.dkr.ecr.*.amazonaws.com"}, {Host: "Docker.io"}, {Host: "::1"}, {Host: "[::2]:5000"}, {Host: "*:81"}}
	if err := Check(tables); err != nil {
		t.Fatal(err)
	}
	r, err := New(tables, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]string{
		"b.example.org": "*.example.org", "a.example.org": "a.example.org", "A.example.org:443": "a.example.org",
		"a.example.org:5000": "a.example.org:5000", "a.b.example.org": "", "example.org": "",
		"1.dkr.ecr.eu-1.amazonaws.com":     "*.dkr.ecr.*.amazonaws.com",
		"1.dkr.ecr.eu-1.amazonaws.com:443": "*.dkr.ecr.*.amazonaws.com",
		"1.dkr.ecr.amazonaws.com":          "", "1.dkr.ecr.x.y.amazonaws.com": "",
		"index.docker.io": "Docker.io", "index.docker.io:443": "Docker.io", "docker.io": "Docker.io",
		"[::1]:80": "::1", "[::2]:5000": "[::2]:5000", "[::2]:80": "", "x:81": "*:81", "x:82": "",
	} {
		if got := r.Table(host).Host; got != want {
			t.Errorf("%s: table %q, want %q", host, got, want)
		}
	}
}

// The keys of logins are read in whichever form Docker has written them.
func TestPlacesOfLogins(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key, repository string
		want            bool
	}{
		{"https://index.docker.io/v1/", "docker.io/library/a", true}, {"docker.io", "docker.io/library/a", true},
		{"docker.io/library", "docker.io/library/a", true}, {"docker.io/lib", "docker.io/library/a", false},
		{"HTTPS://a.example/v2/", "a.example/b", false}, {"https://a.example/v2/", "a.example/b", true},
		{"a.example:5000", "a.example/b", false}, {"a.example/b", "a.example/b", true},
		{"a.example/b/", "a.example/b/c", true}, {"a.example/b/c", "a.example/b", false}, {"", "a.example/b", false},
	} {
		if got := covers(loginPlace(c.key), c.repository); got != c.want {
			t.Errorf("%q covers %s: %t, want %t", c.key, c.repository, got, c.want)
		}
	}
}

// A table is read from TOML, and a key that only a hub has is none of a node's.
func TestTableOfAFile(t *testing.T) {
	t.Parallel()
	const text = "[[registry]]\nhost = 'a.example.org'\nprivate = true\nplugin = ['x', '-v']\nconnections = 3\n"
	read := func(text string) (all []Registry, err error) {
		var config struct {
			Registries []Registry `toml:"registry"`
		}
		err = toml.NewDecoder(strings.NewReader(text)).DisallowUnknownFields().Decode(&config)
		return config.Registries, err
	}
	want := Registry{Host: "a.example.org", Private: true, Plugin: []string{"x", "-v"}, Connections: 3}
	if got, err := read(text); err != nil || len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := read(text + "add = true\n"); !errors.As(err, new(*toml.StrictMissingError)) {
		t.Errorf("a key of hubs: error %v, want that it is unknown", err)
	}
}
