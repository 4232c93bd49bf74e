package hub_test

import (
	"os"
	"strings"
	"testing"

	"lighter/hub"
	"lighter/hub/rootdir"
)

func TestKeyIsKept(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	info, err := os.Stat(rootdir.Key(h.config.Root))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v, want mode 0600", info, err)
	}
	first, err := h.client.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again := h.restart()
	second, err := again.client.Keys(t.Context())
	if err != nil || len(first) != 1 || len(second) != 1 || !first[0].Equal(second[0]) {
		t.Errorf("keys after a restart: %v, %v, want %v", second, err, first)
	}
}

// If the key of a hub that has signed statements is missing, the hub does not start, and makes no
// other key.
func TestLostKeyIsNotReplaced(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.pushReady("a:1", image(lowerTar))
	h.stop()
	if err := os.Remove(rootdir.Key(h.config.Root)); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.Open(t.Context(), h.config, h.Log()); err == nil ||
		!strings.Contains(err.Error(), "is missing: restore it") {
		t.Errorf("open without the key: %v, want an error that says to restore it", err)
	}
	if _, err := os.Stat(rootdir.Key(h.config.Root)); err == nil {
		t.Error("a new key was made")
	}
}

// The same for a hub that has signed nothing yet: nodes may have pinned its key.
func TestLostKeyOfAnEmptyHubIsNotReplaced(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.stop()
	if err := os.Remove(rootdir.Key(h.config.Root)); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.Open(t.Context(), h.config, h.Log()); err == nil ||
		!strings.Contains(err.Error(), "is missing: restore it") {
		t.Errorf("open without the key: %v, want an error that says to restore it", err)
	}
	if _, err := os.Stat(rootdir.Key(h.config.Root)); err == nil {
		t.Error("a new key was made")
	}
}

// The scratch directory is in the bucket, if that is a directory: objects are renamed from it to
// their place.
func TestScratchIsBesideTheObjects(t *testing.T) {
	t.Parallel()
	bucket := t.TempDir()
	h := startHub(t, func(c *hub.Config) { c.Catalog, c.Bucket = "", "file://"+bucket })
	h.pushReady("a:1", image(lowerTar))
	if _, err := os.Stat(rootdir.Scratch(h.config.Root)); err == nil {
		t.Error("there is a scratch directory in the root, too")
	}
	if got := files(t, bucket+"/packs"); len(got) == 0 {
		t.Error("the bucket has no pack")
	}
}

func TestOneHubInADirectory(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	if _, err := hub.Open(t.Context(), h.config, h.Log()); err == nil ||
		!strings.Contains(err.Error(), "another hub runs") {
		t.Errorf("open a second hub: %v, want an error", err)
	}
}

// Each of two hubs with catalogs of their own would delete the other's objects. So a directory is
// the bucket of one hub only, also if it is that of a hub whose configuration does not name it.
func TestOneHubInABucket(t *testing.T) {
	t.Parallel()
	root, bucket := t.TempDir(), "file://"+t.TempDir()
	own := func(bucket string) func(*hub.Config) {
		return func(c *hub.Config) { c.Catalog, c.Bucket = "", bucket }
	}
	unnamed := func(c *hub.Config) {
		c.Catalog, c.Bucket, c.Root = "", "", root
		c.Domains = []hub.Domain{{Name: "team", Repositories: []string{"team/**"}}}
	}
	for second, first := range map[string]func(*hub.Config){
		bucket:                        own(bucket),
		"file://" + root + "/objects": unnamed,
		"file://" + root + "/domains/team/objects": unnamed,
	} {
		h := startHub(t, first)
		c := hubConfig(t)
		own(second)(&c)
		if _, err := hub.Open(t.Context(), c, h.Log()); err == nil ||
			!strings.Contains(err.Error(), "another hub uses the bucket "+second) {
			t.Errorf("open a second hub with the bucket %s: %v, want an error", second, err)
		}
		h.stop()
		again := runHub(t, openHub(t, c))
		again.stop()
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*hub.Config){
		"":                           func(*hub.Config) {},
		"is not a loopback address":  func(c *hub.Config) { c.Listen = "0.0.0.0:7070" },
		"not a loopback address: se": func(c *hub.Config) { c.Listen = ":7070" },
		"want HOST:PORT":             func(c *hub.Config) { c.Listen = "localhost" },
		"set both or none":           func(c *hub.Config) { c.TLSCert = "x" },
		"with an absolute path":      func(c *hub.Config) { c.Bucket = "file://relative" },
		"s3://BUCKET":                func(c *hub.Config) { c.Bucket = "s3://?region=x" },
		"root is empty":              func(c *hub.Config) { c.Root = "" },
		"must be above zero":         func(c *hub.Config) { c.Limits.Entries = 0 },
		"admin_listen 10.0.0.1:1":    func(c *hub.Config) { c.AdminListen = "10.0.0.1:1" },
		"admin_listen \"x\"":         func(c *hub.Config) { c.AdminListen = "x" },
		"an absolute path":           func(c *hub.Config) { c.AdminListen = "unix:x" },
		"neither an address":         func(c *hub.Config) { c.Proxies = []string{"10.0.0.0/8", "x"} },
		"startup_bytes is below":     func(c *hub.Config) { c.StartupBytes = -1 },
		"gc: every_minutes, delay":   func(c *hub.Config) { c.GC.DelayMinutes = 1 << 40 },
		"drain_seconds is":           func(c *hub.Config) { c.DrainSeconds = -1 },
		"scrub_days is":              func(c *hub.Config) { c.ScrubDays = 1 << 40 },
		"image_minutes is":           func(c *hub.Config) { c.Limits.ImageMinutes = 1 << 40 },
		"want HOST":                  func(c *hub.Config) { c.Registries = registryTables("https://r.example.org") },
		"another table":              func(c *hub.Config) { c.Registries = registryTables("a.example", "A.example") },
		"want OS/ARCH":               func(c *hub.Config) { c.Platforms = []string{"amd64"} },
		"want file:///DIR":           func(c *hub.Config) { c.Bucket = "/srv" },
		"bucket \"gs://x\": want":    func(c *hub.Config) { c.Bucket = "gs://x" },
		"bucket \"gs://y\": want": func(c *hub.Config) {
			c.Catalog, c.Bucket = "postgres://db.example.org/hub", "gs://y"
		},
		"bucket s3://x: unknown query parameter \"endpont\"": func(c *hub.Config) {
			c.Bucket = "s3://x?endpont=http://s3.example.org"
		},
		"stall_timeout=x is not": func(c *hub.Config) { c.Bucket = "s3://x?stall_timeout=x" },
		"catalog: its URL is not valid": func(c *hub.Config) {
			c.Catalog, c.Bucket = "postgres://hub:%zz@db.example.org/hub", "s3://x"
		},
		"only one process may use": func(c *hub.Config) {
			c.Catalog, c.Bucket = "postgres://db.example.org/hub", "file:///srv"
		},
	} {
		c := hub.DefaultConfig()
		change(&c)
		err := c.Check()
		if want == "" != (err == nil) || err != nil && (!strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n")) {
			t.Errorf("error %v, want one line with %q, or none if that is empty", err, want)
		}
	}
	c := hub.DefaultConfig()
	c.Catalog, c.Bucket = "postgres://hub:secret%zz@db.example.org/hub", "s3://x"
	if err := c.Check(); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v, want one without the password", err)
	}
	open := hub.DefaultConfig()
	open.Listen, open.PlainHTTP, open.Open = "0.0.0.0:7070", true, true
	if err := open.Check(); err != nil {
		t.Errorf("a public address with plain_http and open: %v, want no error", err)
	}
}

// Proxies are converted to the form of clients' addresses, whatever their form in the
// configuration.
func TestProxies(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"10.0.0.1": "10.0.0.1/32", "::ffff:10.0.0.1": "10.0.0.1/32", "::ffff:10.0.3.0/118": "10.0.0.0/22",
		"10.0.0.1/8": "10.0.0.0/8", "fd00::1/8": "fd00::/8", "::/0": "::/0",
	} {
		c := hub.Config{Proxies: []string{text}}
		got, err := c.ParseProxies()
		if err != nil || got[0].String() != want {
			t.Errorf("%s is parsed as %v, %v, want %s", text, got, err, want)
		}
	}
}
