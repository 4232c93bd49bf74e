package node

import (
	"slices"
	"strings"
	"testing"

	"lighter/socket"
)

// If the path of a socket would be too long, Check refuses the configuration.
func TestSocketPathsTooLong(t *testing.T) {
	path := func(n int) string { return "/" + strings.Repeat("x", n-1) }
	const name = len("/control.sock")
	for _, c := range []struct {
		what   string
		change func(c *Config, more int)
	}{
		{"--root", func(c *Config, more int) { c.Root = path(socket.MaxPath - name + more) }},
		{"address", func(c *Config, more int) { c.Address = path(socket.MaxPath + more) }},
		{"containerd", func(c *Config, more int) { c.Containerd = path(socket.MaxPath + more) }},
		{"http_address", func(c *Config, more int) { c.HTTPAddress = "unix:" + path(socket.MaxPath+more) }},
	} {
		config := DefaultConfig()
		c.change(&config, 0)
		if err := config.Check(); err != nil {
			t.Errorf("%s with the longest allowed path: got %v, want no error", c.what, err)
		}
		c.change(&config, 1)
		err := config.Check()
		if err == nil {
			t.Errorf("%s with a path that is too long: got no error", c.what)
			continue
		}
		for _, word := range []string{c.what, "108 bytes", "107", "shorter"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s with a path that is too long: got %q, want %q in it", c.what, err, word)
			}
		}
	}
}

// The default order of sources: hubs, attached indexes, tables of contents, SOCI indexes. Tables of
// contents come before SOCI indexes, because they need no request of their own.
func TestDefaultSources(t *testing.T) {
	if got, want := DefaultConfig().Sources, []string{"hub", "attached", "tables", "soci"}; !slices.Equal(got, want) {
		t.Errorf("the default sources are %q, want %q", got, want)
	}
}

// The sources are known words, each once, and the node has at least one of them.
func TestSources(t *testing.T) {
	hub, direct := []string{"http://127.0.0.1:7070"}, []string{"registry.test/**"}
	for _, c := range []struct {
		sources, hubs, direct []string
		want                  string // in the error; empty: there is none
	}{
		{[]string{"hub", "tables", "soci"}, hub, nil, ""},
		{[]string{"soci", "hub", "tables"}, hub, direct, ""},
		{[]string{"tables"}, hub, direct, ""},
		{[]string{"hub", "stargz"}, hub, nil, `"stargz" is not one of hub, `},
		{[]string{"hub", "tables", "hub"}, hub, nil, "hub is in the list twice"},
		{nil, hub, direct, "none of [] is there"},
		{[]string{"hub"}, nil, direct, `none of ["hub"] is there: hub needs hubs`},
		{[]string{"tables", "soci"}, hub, nil, "the others need repositories in direct"},
	} {
		config := DefaultConfig()
		config.Sources, config.Hubs, config.Direct = c.sources, c.hubs, c.direct
		if err := config.Check(); c.want == "" && err != nil ||
			c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("sources %q, hubs %q, direct %q: error %v, want %q", c.sources, c.hubs, c.direct, err, c.want)
		}
	}
}
