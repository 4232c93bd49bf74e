package hub

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"lighter/renewed"

	"lighter/wire"
)

// Config is a hub's configuration, as its TOML file has it.
type Config struct {
	Root   string `toml:"root" comment:"Directory for everything that the hub keeps."`
	Listen string `toml:"listen" comment:"Address to listen on, HOST:PORT."`

	AdminListen string `toml:"admin_listen" comment:"Where alone images are added, pushed, removed and verified, and traces imported and removed: HOST:PORT, or unix:/PATH, which is of the hub's user alone (lighter --hub unix:/PATH). What is answered at listen is answered there too. Empty: all of it at listen."`

	AdminTokenFile string   `toml:"admin_token_file" comment:"File with one line, the token that is asked for before images and traces are added, pushed, removed or verified (lighter --token-file, or the password of a registry's client), but for a Unix socket. Nobody but the hub's user and group may read it. It is read at the start."`
	Open           bool     `toml:"open" comment:"Everybody who reaches the hub may change what it has, though others than this machine reach it and there is no token."`
	Names          []string `toml:"names" comment:"Host names under which the hub is reached by those who change something without TLS and token. Its addresses and localhost need not be named: a web page can give its own name to them, but not theirs to itself."`

	Sources []string `toml:"sources" comment:"Registries that images are added from though their addresses are not public ones: HOST or HOST:PORT, as in docker://HOST:PORT/REPO:TAG. Whoever adds images can have the hub connect to them, on any port if there is none."`

	Proxies []string `toml:"proxies" comment:"Addresses or networks of the proxies before the hub whose X-Forwarded-For is believed, to tell from whom a trace comes: 10.0.0.1, 10.1.0.0/16."`

	RegistryHosts []string `toml:"registry_hosts" comment:"HOST[:PORT] under which containerd on nodes pulls from this hub's own registry: hub.example.org. Nodes with trust = \"image\" take such pulls for what they are by these names alone."`

	TLSCert   string `toml:"tls_cert" comment:"Certificate chain (PEM); with it the hub speaks HTTPS."`
	TLSKey    string `toml:"tls_key" comment:"Key of the certificate (PEM)."`
	PlainHTTP bool   `toml:"plain_http" comment:"Allow plain HTTP on an address that is not a loopback one."`

	Bucket    string   `toml:"bucket" comment:"Where packs and indexes lie: file:///DIR, or a URL of an object store; empty: ROOT/objects."`
	Platforms []string `toml:"platforms" comment:"Images for these are taken in when they are pushed, and added unless asked otherwise."`

	TraceRun bool `toml:"trace_run" comment:"Start each image once when it has just become ready, so that it is known what its first start reads: as its config says (not at all if that names a user whom the image does not have), without network, in a user namespace, with 2 GiB of memory and for four minutes at most. It is code of whoever made the image; otherwise the hub runs none: a bug of the kernel or of runc can give that code the machine. Needs root, runc, Linux 5.19 and what a node needs; see docs/operating.md, also for the systemd unit."`

	StartupBytes int64 `toml:"startup_bytes" comment:"The most that the startup packs of all images take together, in bytes; 0: a quarter of what all other packs take, and 8 GiB at least. Beyond it those images lose theirs that nobody has pulled or started for longest, until somebody does; they start more slowly. Those that are out of use are kept for a while beside it, of the same bytes at most."`

	LogLevel  string `toml:"log_level" comment:"Debug, info, warn or error."`
	LogFormat string `toml:"log_format" comment:"Text or json."`

	Limits Limits `toml:"limits" comment:"An image beyond these fails."`
}

// Limits bound what an image may ask of the hub.
type Limits struct {
	LayerBytes int64 `toml:"layer_bytes" comment:"Decompressed bytes of one layer."`
	Entries    int64 `toml:"entries" comment:"Files, directories and links of all layers of an image."`

	ImageMinutes int64 `toml:"image_minutes" comment:"Minutes that the hub may take to copy an image from another registry, and then to take it in: one is taken in at a time."`
}

// DefaultConfig returns the configuration that is used where nothing else is
// said.
func DefaultConfig() Config {
	return Config{
		Root:    "/var/lib/lighter-hub",
		Listen:  "127.0.0.1:7070",
		Proxies: []string{},
		Names:   []string{},
		Sources: []string{},

		RegistryHosts: []string{},

		Platforms: []string{"linux/" + runtime.GOARCH},
		LogLevel:  "info",
		LogFormat: "text",
		Limits:    Limits{LayerBytes: 64 << 30, Entries: 4_000_000, ImageMinutes: 240},
	}
}

// Check says in one line what is wrong with the configuration.
func (c *Config) Check() error {
	host, _, err := net.SplitHostPort(c.Listen)
	switch {
	case c.Root == "":
		return errors.New("root is empty: say where the hub keeps its data")
	case err != nil:
		return fmt.Errorf("listen %q: want HOST:PORT", c.Listen)
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return errors.New("tls_cert and tls_key belong together: set both or none")
	case c.TLSCert == "" && !c.PlainHTTP && !wire.IsLoopback(host):
		return fmt.Errorf("listen %s is no loopback address: set tls_cert and tls_key, or plain_http if the network is to be trusted", c.Listen)
	case c.Limits.LayerBytes <= 0 || c.Limits.Entries <= 0 || c.Limits.ImageMinutes <= 0:
		return errors.New("limits have to be above zero")
	case c.StartupBytes < 0:
		return errors.New("startup_bytes is below zero")
	case len(c.Platforms) == 0 || slices.ContainsFunc(c.Platforms, func(p string) bool { return !strings.Contains(p, "/") }):
		return fmt.Errorf("platforms %q: want OS/ARCH, at least one", c.Platforms)
	}
	if u, err := url.Parse(c.Bucket); err != nil || c.Bucket != "" && u.Scheme == "" {
		return fmt.Errorf("bucket %q: want a URL such as file:///DIR", c.Bucket)
	}
	if _, err := c.proxies(); err != nil {
		return err
	}
	for _, host := range c.RegistryHosts {
		if ref, err := wire.ParseName(host + "/image"); err != nil || ref.NamedRepository() != host+"/image" || strings.Contains(host, "/") {
			return fmt.Errorf("registry_hosts: %q is not HOST or HOST:PORT in lower case", host)
		}
	}
	if i := slices.IndexFunc(c.Sources, func(s string) bool { return s == "" || strings.Contains(s, "/") }); i >= 0 {
		return fmt.Errorf("sources: %q is no registry: want HOST or HOST:PORT", c.Sources[i])
	}
	if err := c.checkAdmin(); err != nil {
		return err
	}
	return c.checkWriters()
}

// checkWriters refuses an address where whoever reaches it could change what the hub
// has.
func (c *Config) checkWriters() error {
	at := c.Listen
	if c.AdminListen != "" {
		at = c.AdminListen
	}
	if strings.HasPrefix(at, unixPrefix) || c.AdminTokenFile != "" || c.Open {
		return nil
	}
	if host, _, err := net.SplitHostPort(at); err == nil && wire.IsLoopback(host) {
		return nil
	}
	return fmt.Errorf("whoever reaches %s could change what the hub has: set admin_token_file, or admin_listen to unix:/PATH or a loopback address, or open if everybody may", at)
}

// unixPrefix begins an admin_listen that is a Unix socket.
const unixPrefix = "unix:"

// checkAdmin says what is wrong with admin_listen.
func (c *Config) checkAdmin() error {
	if path, socket := strings.CutPrefix(c.AdminListen, unixPrefix); socket {
		if !filepath.IsAbs(path) || len(path) > maxSocketPath {
			return fmt.Errorf("admin_listen %s: want unix: and an absolute path of at most %d bytes", c.AdminListen, maxSocketPath)
		}
		return nil
	}
	if c.AdminListen == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(c.AdminListen)
	switch {
	case err != nil:
		return fmt.Errorf("admin_listen %q: want HOST:PORT or unix:/PATH", c.AdminListen)
	case c.TLSCert == "" && !c.PlainHTTP && !wire.IsLoopback(host):
		return fmt.Errorf("admin_listen %s is no loopback address: set tls_cert and tls_key, or plain_http if the network is to be trusted", c.AdminListen)
	}
	return nil
}

// maxSocketPath is the longest path that a Unix socket can have.
const maxSocketPath = 107

// proxies reads the addresses of proxies.
func (c *Config) proxies() (all []netip.Prefix, err error) {
	for _, text := range c.Proxies {
		p, err := netip.ParsePrefix(text)
		if a, addrErr := netip.ParseAddr(text); addrErr == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		// Clients' addresses are compared as IPv4 where they are that.
		const mapped = 96 // bits of an IPv6 address before those of an IPv4 one
		if err == nil && p.Addr().Is4In6() && p.Bits() >= mapped {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
		}
		if err != nil {
			return nil, fmt.Errorf("proxies: %q is neither an address nor a network", text)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// certificate loads what the hub speaks HTTPS with, again whenever its files have changed;
// nil: nothing.
func (c *Config) certificate(log *slog.Logger) (*tls.Config, error) {
	if c.TLSCert == "" {
		return nil, nil
	}
	load := func() (tls.Certificate, error) { return tls.LoadX509KeyPair(c.TLSCert, c.TLSKey) }
	pair, err := renewed.Read(log, load, c.TLSCert, c.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("load the certificate %s and its key %s: %w", c.TLSCert, c.TLSKey, err)
	}
	return &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		now := pair.Get(hello.Context())
		return &now, nil
	}}, nil
}

// bucketURL returns where the objects lie.
func (c *Config) bucketURL() (string, error) {
	if c.Bucket != "" {
		return c.Bucket, nil
	}
	dir, err := filepath.Abs(objectsDir(c.Root))
	if err != nil {
		return "", err
	}
	return (&url.URL{Scheme: "file", Path: dir}).String(), nil
}
