package hub

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"lighter/bytesize"
	"lighter/hub/catalog"
	"lighter/hub/events"
	"lighter/hub/export"
	"lighter/hub/hooks"
	"lighter/hub/images"
	"lighter/hub/objects"
	"lighter/hub/quota"
	"lighter/hub/registries"
	"lighter/hub/retention"
	"lighter/hub/rootdir"
	"lighter/hub/wishlist"
	"lighter/renewed"
	"lighter/socket"
	"lighter/wire"
)

// Config is a hub's configuration file.
type Config struct {
	Root   string `toml:"root" comment:"Directory for all files of the hub."`
	Listen string `toml:"listen" comment:"Address to listen on, HOST:PORT."`

	AdminListen string `toml:"admin_listen" comment:"The only address for requests of administrators, which change something (push, add or remove images), start work (lighter verify, fsck or gc) or list holders: HOST:PORT, or unix:/PATH, which only the hub's user can open (lighter --hub unix:/PATH). All other requests are answered there, too. Empty: listen is the address for requests of administrators."`

	AdminTokenFile string   `toml:"admin_token_file" comment:"File with one line: the token that requests of administrators (see admin_listen) need: give it with lighter --token-file, or as the password of a registry client. A Unix socket needs none. Only the hub's user and group may have access to the file. The file is read when the hub starts."`
	Open           bool     `toml:"open" comment:"If there is no admin_token_file: allow requests of administrators from everybody who can reach their address (admin_listen, or listen if that is empty), from other machines, too."`
	Names          []string `toml:"names" comment:"Host names under which changes without TLS and token are accepted. The hub's addresses and localhost need not be listed. This protects the hub from web pages whose host name resolves to the hub's address (DNS rebinding)."`

	KeepBlobs string `toml:"keep_blobs" comment:"Which layers of ready images the hub's registry stores as they were pushed or copied. always: all. until-upstream: those that no other registry known to the hub has, or that the hub cannot read there. never: none; then the hub cannot serve layers of pushed images, nor of images that were added with a login, unless it can read them without that login (registry). containerd without the snapshotter cannot pull such images. The collection deletes layers that are not to be stored any more. The hub serves a layer that it does not store by reading it from the registry that the image was added from."`

	Proxies []string `toml:"proxies" comment:"Addresses or networks of trusted proxies in front of the hub: 10.0.0.1, 10.1.0.0/16. The hub takes the sender of a trace, or of a report of what a node has, from their header X-Forwarded-For."`

	RegistryHosts []string `toml:"registry_hosts" comment:"HOST[:PORT] under which containerd on nodes pulls from this hub's own registry: hub.example.org. Nodes with trust = \"image\" recognize such pulls only by these names."`

	TLSCert   string `toml:"tls_cert" comment:"Certificate chain (PEM). With it the hub serves HTTPS. A changed file is read again."`
	TLSKey    string `toml:"tls_key" comment:"Key of the certificate (PEM)."`
	PlainHTTP bool   `toml:"plain_http" comment:"Allow plain HTTP on an address that is not a loopback address."`

	Catalog   string   `toml:"catalog" comment:"The hub's database: postgres://USER@HOST:PORT/DATABASE. For the password, name a file in the URL's query: passfile=FILE, in the format of libpq's password file. With PostgreSQL, bucket has to be on S3. Empty: the SQLite file ROOT/catalog.db."`
	Bucket    string   `toml:"bucket" comment:"Where packs, indexes, locations and layer records are stored: file:///DIR, or s3://BUCKET?region=…&endpoint=…&use_path_style=true. A bucket on S3 also has the files of the hub's registry. Empty: ROOT/objects."`
	Platforms []string `toml:"platforms" comment:"Platforms of pushed images that are ingested, and the default for added ones."`

	StartupBytes bytesize.Size `toml:"startup_bytes" comment:"Limit of the startup packs of all images of a domain together: 20GiB. 0: a quarter of the bytes of the domain's other packs, and at least 8 GiB. Beyond the limit, the least recently pulled or started images lose their startup packs. They start more slowly until they are used again. Replaced packs are kept in addition for up to a week, but no more than 8 GiB of them, or this limit if it is less."`

	KeepHeldDays int64 `toml:"keep_held_days" comment:"A report of what a node or a mirror has counts for 7 days. For this many days more, the hub keeps what the report names, even if the image was removed."`

	ScrubDays int64 `toml:"scrub_days" comment:"The hub reads all its objects, and the blobs of images in its registry, once in this many days. It compares them with their digests; a layer record, which has none, with the catalog. Damaged objects are made again, if possible; damaged blobs are reported. 0: never."`

	LogLevel  string `toml:"log_level" comment:"What is logged: debug, info, warn or error."`
	LogFormat string `toml:"log_format" comment:"Format of the log: text or json."`

	DiskReserve bytesize.Size `toml:"disk_reserve" comment:"Free bytes that the hub leaves on its disks: 10GiB or 500MB. With fewer free bytes the hub accepts no uploads and ingests nothing; added images wait. It goes on to serve what it has. 0: no reserve."`

	DockerNames []string `toml:"docker_names" comment:"Host names under which Docker's registry-mirrors reach the hub, such as docker-mirror.example.org. A request for REPO there is about docker.io/REPO. No other client may use these names."`

	PullThroughBytes bytesize.Size `toml:"pull_through_bytes" comment:"Limit of the disk space for blobs that clients have just read through the hub (pull_through): 16GiB. Their images are ingested from there. Blobs that are being read count in addition."`

	DrainSeconds int64 `toml:"drain_seconds" comment:"When the hub gets SIGTERM, it accepts no further requests and gives its jobs back at once. Requests in flight, such as pushes, may take this many seconds more. The service manager has to wait for a few seconds longer."`

	RetentionMaxPercent int64 `toml:"retention_max_percent" comment:"The retention rules remove at most this share of a repository's images at a time, in percent. If they would remove more, they remove nothing of the repository until an administrator confirms it (lighter retention)."`

	Retention []retention.Rule `toml:"retention" comment:"Rules for images that may be removed, as tables [[retention]] with repositories, [[retention.keep_tags]] and untagged_days. Without a rule for its repository, an image stays until it is removed by hand. The rules are applied once a day."`

	Quota []quota.Quota `toml:"quota" comment:"Quotas, as tables [[quota]] with domain, prefix and bytes. An image that would exceed a quota is refused when it is pushed or added."`

	Registries []registries.Registry `toml:"registry" comment:"Other registries that the hub reads, as tables [[registry]] with host and what the hub needs for it: private, plain_http, ca, requests_per_second, connections, and one of logins, helper, plugin, username with password_file, and token_file; or that clients may read them (pull_through) or push to them (push_names) through the hub, or that the hub attaches indexes to images there (attach). Other registries need no table."`

	Wishlists []wishlist.List `toml:"wishlist" comment:"Lists of images of other registries that the hub keeps as these have them, as tables [[wishlist]] with name, file, urls, images or registries, every_minutes, platforms, by_rules and domain. Users can add further lists (lighter wishlist add, lighter sync)."`

	Domains []Domain `toml:"domain" comment:"Domains, as tables [[domain]] with name and repositories: sets of images that the hub keeps apart from all others. Two domains share no stored data, and a node reads one domain. All other images are in the domain \"default\"."`

	Events []events.Target `toml:"event" comment:"Receivers of events, as tables [[event]] with name and url: an image has become ready, has failed or was removed (lighter events)."`

	Hooks []hooks.Hook `toml:"hook" comment:"Senders of webhooks, as tables [[hook]] with name, kind, registry and secret_file: when an image was pushed there, the hub looks at it and ingests it."`

	Limits Limits `toml:"limits" comment:"An image that exceeds a limit fails."`
	GC     GC     `toml:"gc" comment:"Collection: the hub frees what no image needs any more, also in its registry."`
	Export Export `toml:"export" comment:"A mirror that the hub keeps up to date: files that any web server or object store can serve to nodes, also while the hub is stopped."`
}

// Export says where the hub keeps a mirror of itself.
type Export struct {
	To      string        `toml:"to" comment:"An absolute path of a directory, or s3://BUCKET?region=REGION as for bucket. Only this hub may write there. Empty: no mirror."`
	Domains []string      `toml:"domains" comment:"The domains that are copied. They have one place together, so everybody who reaches it can read all of them. The files of a domain that is taken out of the list stay there."`
	Rate    bytesize.Size `toml:"rate" comment:"Bytes that are written per second at most: 100MiB. 0: no limit."`
}

// GC says when the hub deletes what no image needs any more.
type GC struct {
	EveryMinutes int64 `toml:"every_minutes" comment:"Minutes between two collections. 0: only on request (lighter gc)."`
	DelayMinutes int64 `toml:"delay_minutes" comment:"Minutes that everything of an image stays after its removal: a node may have pulled it just before."`
	KeepMinutes  int64 `toml:"keep_minutes" comment:"Minutes that a pack stays after its needed parts were copied into another pack: nodes with older locations still ask for it."`
}

// Limits bounds the work for one image.
type Limits struct {
	LayerBytes bytesize.Size `toml:"layer_bytes" comment:"Decompressed bytes of one layer: 64GiB."`
	Entries    int64         `toml:"entries" comment:"Files, directories and links of all layers of an image."`

	ImageMinutes int64 `toml:"image_minutes" comment:"Limit in minutes for copying and ingesting all images of a name."`
}

// DefaultConfig returns the default configuration.
func DefaultConfig() Config {
	return Config{
		Root:    "/var/lib/lighter-hub",
		Listen:  "127.0.0.1:7070",
		Proxies: []string{},
		Names:   []string{},

		RegistryHosts: []string{},
		KeepBlobs:     string(images.KeepUntilUpstream),

		Platforms:    []string{"linux/" + runtime.GOARCH},
		KeepHeldDays: 30,
		ScrubDays:    30,

		DiskReserve:         1 << 30,
		DockerNames:         []string{},
		PullThroughBytes:    16 << 30,
		DrainSeconds:        5,
		RetentionMaxPercent: 50,
		Retention:           []retention.Rule{},
		Quota:               []quota.Quota{},
		Registries:          []registries.Registry{},
		Wishlists:           []wishlist.List{},
		Domains:             []Domain{},
		Events:              []events.Target{},
		Hooks:               []hooks.Hook{},

		LogLevel:  "info",
		LogFormat: "text",
		Limits:    Limits{LayerBytes: 64 << 30, Entries: 4_000_000, ImageMinutes: 240},
		GC:        GC{EveryMinutes: 360, DelayMinutes: 1440, KeepMinutes: 10080},
		Export:    Export{Domains: []string{wire.DefaultDomain}, Rate: 100 << 20},
	}
}

// GivenUp returns what replaces a key that earlier versions had. It is empty for all other keys.
func (*Config) GivenUp(key string) string {
	return map[string]string{
		"sources":         "a table [[registry]] for each registry, with host = \"HOST[:PORT]\" and private = true",
		"upstream_logins": "a table [[registry]] for each registry, with host = \"HOST[:PORT]\" and logins = \"FILE\"",
	}[key]
}

// maxReserve bounds the reserve of free bytes on disks.
const maxReserve bytesize.Size = 1 << 60

// maxDrain bounds drain_seconds.
const maxDrain = 24 * 60 * 60

// maxDays and maxMinutes bound periods in the configuration.
const (
	maxDays    = 36_500
	maxMinutes = maxDays * 24 * 60
)

// Check returns an error if the configuration is invalid. The error has one line.
func (c *Config) Check() error {
	_, _, err := net.SplitHostPort(c.Listen)
	switch {
	case c.Root == "":
		return errors.New("root is empty: name the directory for the hub's files")
	case err != nil:
		return fmt.Errorf("listen %q: want HOST:PORT", c.Listen)
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return errors.New("tls_cert and tls_key: set both or none")
	case c.Limits.LayerBytes <= 0 || c.Limits.Entries <= 0 || c.Limits.ImageMinutes <= 0:
		return errors.New("limits: layer_bytes, entries and image_minutes must be above zero")
	case c.KeepHeldDays < 0 || c.KeepHeldDays > maxDays:
		return fmt.Errorf("keep_held_days is %d: want 0 to %d", c.KeepHeldDays, maxDays)
	case c.DiskReserve < 0 || c.DiskReserve > maxReserve:
		return fmt.Errorf("disk_reserve is %s: want 0 to %s", c.DiskReserve, maxReserve)
	case c.DrainSeconds < 0 || c.DrainSeconds > maxDrain:
		return fmt.Errorf("drain_seconds is %d: want 0 to %d", c.DrainSeconds, maxDrain)
	case c.RetentionMaxPercent < 0 || c.RetentionMaxPercent > 100:
		return fmt.Errorf("retention_max_percent is %d: want 0 to 100", c.RetentionMaxPercent)
	case c.Limits.ImageMinutes > maxMinutes:
		return fmt.Errorf("limits: image_minutes is %d: want 1 to %d", c.Limits.ImageMinutes, maxMinutes)
	case min(c.GC.EveryMinutes, c.GC.DelayMinutes, c.GC.KeepMinutes) < 0,
		max(c.GC.EveryMinutes, c.GC.DelayMinutes, c.GC.KeepMinutes) > maxMinutes:
		return fmt.Errorf("gc: every_minutes, delay_minutes and keep_minutes: want 0 to %d", maxMinutes)
	case c.StartupBytes < 0:
		return errors.New("startup_bytes is below zero")
	case c.ScrubDays < 0 || c.ScrubDays > maxDays:
		return fmt.Errorf("scrub_days is %d: want 0 to %d", c.ScrubDays, maxDays)
	case len(c.Platforms) == 0:
		return errors.New("platforms is empty: want OS/ARCH, at least one")
	}
	for _, p := range c.Platforms {
		if err := wire.CheckPlatform(p); err != nil {
			return fmt.Errorf("platforms: %w", err)
		}
	}
	if err := c.checkStores(); err != nil {
		return err
	}
	if err := images.KeepBlobs(c.KeepBlobs).Check(); err != nil {
		return err
	}
	if _, err := c.proxies(); err != nil {
		return err
	}
	if err := retention.Check(c.Retention); err != nil {
		return err
	}
	if err := quota.Check(c.Quota); err != nil {
		return err
	}
	if err := checkDomains(c.Domains); err != nil {
		return err
	}
	if err := events.Check(c.Events); err != nil {
		return err
	}
	if err := wishlist.Check(c.Wishlists); err != nil {
		return err
	}
	for i, l := range c.Wishlists {
		if !slices.Contains(c.domainNames(), l.DomainName()) {
			return fmt.Errorf("wishlist %d: there is no domain %q", i+1, l.Domain)
		}
	}
	if err := hooks.Check(c.Hooks); err != nil {
		return err
	}
	for i, q := range c.Quota {
		if q.DomainName() != wire.DefaultDomain &&
			!slices.ContainsFunc(c.Domains, func(d Domain) bool { return d.Name == q.Domain }) {
			return fmt.Errorf("quota %d: there is no domain %q", i+1, q.Domain)
		}
	}
	if err := c.checkThroughs(); err != nil {
		return err
	}
	if err := c.checkExport(); err != nil {
		return err
	}
	for _, host := range c.RegistryHosts {
		ref, err := wire.ParseName(host + "/image")
		if err != nil || ref.NamedRepository() != host+"/image" || strings.Contains(host, "/") {
			return fmt.Errorf("registry_hosts: %q is not HOST or HOST:PORT in lower case", host)
		}
	}
	if err := registries.Check(c.Registries); err != nil {
		return err
	}
	return c.checkAddresses()
}

// checkExport returns an error if the mirror cannot be kept as configured. It connects to nothing.
func (c *Config) checkExport() error {
	if c.Export.To == "" {
		return nil
	}
	if err := export.CheckPlace(c.Export.To); err != nil {
		return fmt.Errorf("export: to: %w", err)
	}
	if c.Export.Rate < 0 {
		return errors.New("export: rate is below zero")
	}
	if c.Catalog != "" && !export.IsBucket(c.Export.To) {
		return errors.New("export: several processes may use the database that catalog names, " +
			"so the mirror has to be where all of them can write: set to = \"s3://BUCKET?region=REGION\"")
	}
	for i, name := range c.Export.Domains {
		if !slices.Contains(c.domainNames(), name) || slices.Contains(c.Export.Domains[:i], name) {
			return fmt.Errorf("export: domains: there is no domain %q, or it is named twice", name)
		}
	}
	return nil
}

// checkStores returns an error if the URL of the catalog or of the bucket is invalid, or if they
// must not be used together. It does not connect to them. The error has no password.
func (c *Config) checkStores() error {
	if c.Catalog != "" {
		if err := catalog.CheckURL(c.Catalog); err != nil {
			return fmt.Errorf("catalog: %w", err)
		}
	}
	u, err := url.Parse(c.Bucket)
	isS3 := err == nil && u.Scheme == "s3" && u.Host != ""
	isDir := err == nil && u.Scheme == "file" && u.Host == "" && path.IsAbs(u.Path)
	switch {
	case c.Bucket != "" && !isS3 && !isDir:
		return fmt.Errorf("bucket %q: want file:///DIR, with an absolute path, or s3://BUCKET?region=REGION", c.Bucket)
	case c.Catalog != "" && !isS3:
		return errors.New("several processes may use the database that catalog names, but only one process may use " +
			"a bucket that is a directory: set bucket = \"s3://BUCKET?region=REGION\", too, or leave catalog empty")
	case isS3:
		if err := objects.CheckS3(*u); err != nil {
			return fmt.Errorf("bucket s3://%s: %w", u.Host, err)
		}
	}
	return nil
}

// unixPrefix marks an admin_listen that is a Unix socket.
const unixPrefix = "unix:"

// checkAddresses returns an error if other machines can reach an address with plain HTTP or without
// a token for changes, unless the configuration allows that (plain_http, open).
func (c *Config) checkAddresses() error {
	settings, changes := [][2]string{{"listen", c.Listen}}, c.Listen
	if c.AdminListen != "" {
		if err := socket.CheckAddress("admin_listen", c.AdminListen); err != nil {
			return err
		}
		settings, changes = append(settings, [2]string{"admin_listen", c.AdminListen}), c.AdminListen
	}
	for _, s := range settings {
		if c.TLSCert == "" && !c.PlainHTTP && !isLocal(s[1]) {
			return fmt.Errorf("%s %s is not a loopback address: "+
				"set tls_cert and tls_key, or plain_http if you trust the network", s[0], s[1])
		}
	}
	if c.AdminTokenFile == "" && !c.Open && !isLocal(changes) {
		return fmt.Errorf("everybody who reaches %s could make changes: set admin_token_file, "+
			"or admin_listen to unix:/PATH or a loopback address, or open to allow it", changes)
	}
	return nil
}

// isLocal reports whether only this machine can reach an address.
func isLocal(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return strings.HasPrefix(address, unixPrefix) || err == nil && wire.IsLoopback(host)
}

// proxies parses the addresses of proxies.
func (c *Config) proxies() (all []netip.Prefix, err error) {
	for _, text := range c.Proxies {
		p, err := netip.ParsePrefix(text)
		if a, addrErr := netip.ParseAddr(text); addrErr == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		// IPv4 addresses are compared in their IPv4 form.
		const mapped = 96 // length of the prefix ::ffff:0:0/96
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

// tls returns the configuration of HTTPS, or nil for plain HTTP. It reads the certificate again
// whenever its files have changed.
func (c *Config) tls(log *slog.Logger) (*tls.Config, error) {
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

// bucketURL returns the URL of the object store.
func (c *Config) bucketURL() (string, error) {
	if c.Bucket != "" {
		return c.Bucket, nil
	}
	dir, err := filepath.Abs(rootdir.Objects(c.Root))
	if err != nil {
		return "", err
	}
	return (&url.URL{Scheme: "file", Path: dir}).String(), nil
}
