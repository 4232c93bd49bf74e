package node

import (
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
