package hub

import (
	"os"
	"strings"
	"testing"
)

func TestKeyIsKept(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	info, err := os.Stat(keyFile(h.config.Root))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}
	first, err := h.client.Key(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again := h.restart()
	second, err := again.client.Key(t.Context())
	if err != nil || !first.Equal(second) {
		t.Errorf("after a restart the key is %v, %v; was %v", second, err, first)
	}
}

func TestOneHubInADirectory(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	if _, err := Open(t.Context(), h.config, h.log); err == nil || !strings.Contains(err.Error(), "another hub runs") {
		t.Errorf("a second hub: %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Config){
		"":                        func(*Config) {},
		"is no loopback address":  func(c *Config) { c.Listen = "0.0.0.0:7070" },
		"no loopback address: se": func(c *Config) { c.Listen = ":7070" },
		"want HOST:PORT":          func(c *Config) { c.Listen = "localhost" },
		"belong together":         func(c *Config) { c.TLSCert = "x" },
		"root is empty":           func(c *Config) { c.Root = "" },
		"above zero":              func(c *Config) { c.Limits.Entries = 0 },
		"want OS/ARCH":            func(c *Config) { c.Platforms = []string{"amd64"} },
		"such as file":            func(c *Config) { c.Bucket = "/srv" },
	} {
		c := DefaultConfig()
		change(&c)
		err := c.Check()
		if want == "" != (err == nil) || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	open := DefaultConfig()
	open.Listen, open.PlainHTTP = "0.0.0.0:7070", true
	if err := open.Check(); err != nil {
		t.Errorf("plain HTTP that was allowed: %v", err)
	}
}
