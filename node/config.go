package node

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"lighter/format/index"
	"lighter/node/completion"
	"lighter/node/control"
	"lighter/node/mount"
	"lighter/socket"
	"lighter/store/disk"
	"lighter/store/origin"
	"lighter/wire"
	"lighter/wire/client"
)

// Config is a node's configuration, in TOML. `lighter config node` prints it.
type Config struct {
	Root        string     `toml:"root" comment:"Where the node keeps its cache, trees and mounts. On an ordinary local file system."`
	Address     string     `toml:"address" comment:"The Unix socket on which containerd reaches the snapshotter. Empty: no snapshotter."`
	Hubs        []string   `toml:"hubs" comment:"URLs of hubs, and of mirrors that hold the same; the first that works is asked."`
	HubKeys     []string   `toml:"hub_keys" comment:"The public keys (ed25519:...) whose statements are believed, of whatever hub they come. Empty: learned when it is first needed from the node's only hub, if that is on this machine and run by root (or by the node's own user); otherwise the node needs them here."`
	Trust       Trust      `toml:"trust" comment:"For which pulls images come from the hubs. image: for those of a manifest that a hub knows, from a repository that it knows the image from, as containerd says with enable_remote_snapshot_annotations; so only with the leave of that registry. chain: for all that name a chain of layers that a hub knows: whoever may start containers on this machine can start any image of the hub, with credentials for it or without. auto: chain where all hubs are on this machine, else image."`
	Scope       string     `toml:"scope" comment:"The scope on every hub."`
	PlainHTTP   bool       `toml:"plain_http" comment:"Allow plain HTTP to a hub that is not on this machine."`
	CAFile      string     `toml:"ca_file" comment:"Certificates (PEM) to trust for the hub, beside the system's."`
	MountMode   mount.Mode `toml:"mount_mode" comment:"How the kernel gets at images: auto, file (Linux 6.12), loop (behind loop devices, Linux 5.16), or none (every image is unpacked). auto: file where the kernel can, else loop, else none."`
	RemapIDs    bool       `toml:"remap_ids" comment:"Map file owners into user namespaces by idmapped mounts (Linux 5.19). Set it exactly when containerd is told of the capability remap-ids."`
	CacheSize   Size       `toml:"cache_size" comment:"The most that the chunk cache takes on the disk: 20GiB or 500MB. In memory it takes some 100 bytes a chunk, which has 64 KiB on average, or less where files are small: 30 to 60 MB for a full cache of 20 GiB, 1.6 to 3 GB for one of 1 TiB."`
	Prefetch    bool       `toml:"prefetch" comment:"Fetch what starts of an image need before they ask for it, or read it from the disk, as far as the hub knows; and, where a hub is far away, more of a file than was asked for."`
	PrefetchMax Size       `toml:"prefetch_limit" comment:"The most that is fetched so for one image, uncompressed, and never more than half of cache_size."`
	FreeLow     Space      `toml:"disk_free_low" comment:"When less than this is free of the disk that the cache is on, the cache gives way, down to a sixteenth of its size; by itself it never fills the disk beyond this. A share (17%) or a size (50GiB); 0: it does not look.\nThe kubelet removes unused images when 15 % are free (imageGCHighThresholdPercent 85) and evicts pods at imagefs.available<15% and nodefs.available<10%: stay above what it is told."`
	FreeHigh    Space      `toml:"disk_free_high" comment:"It gives way until this much is free."`
	ScrubRate   Size       `toml:"scrub_rate" comment:"How much of the cache, and of the metadata images that are mounted and the local devices, is read and verified a second, behind all else: 10MiB. 0: none. What is damaged in the cache is noticed when it is read; a metadata image, which the kernel reads, when it is mounted, and while it is by this alone; a local device when it is made, and then by this alone."`
	Record      bool       `toml:"record" comment:"Record which parts of an image are read when its first container starts, and report that to a hub, which has them fetched together from then on. It says nothing of what was run, where or when. (lighter trace record does it once.)"`
	RecordDelay Delay      `toml:"record_delay" comment:"How long a trace waits at most before it is reported, by chance: of thousands of nodes that start the same at the same time a hub then hears in turn. With a hub on this machine it does not wait."`
	HTTPAddress string     `toml:"http_address" comment:"Where /metrics, /healthz and /readyz are answered: HOST:PORT, or unix:/PATH, which is root's alone. Empty: nowhere."`
	LogLevel    string     `toml:"log_level" comment:"What is logged: debug, info, warn or error."`
	LogFormat   string     `toml:"log_format" comment:"How the log is written: text or json."`

	Complete         bool                `toml:"complete" comment:"Fetch all of the images that are run, behind all else, while the cache has room without anything going for it."`
	CompleteRate     Size                `toml:"complete_rate" comment:"How much is fetched so a second, compressed: 10MiB. 0: as much as is left of the link."`
	CompleteSchedule completion.Schedule `toml:"complete_schedule" comment:"When that is done, in local time: [\"22:00-06:00\"]. Empty: always."`
	LocalDevice      bool                `toml:"local_device" comment:"When all of an image is here, write it to a file that its next mounts read instead of asking the node: such containers need no node any more. It takes the image's size of the disk once more, within cache_size (at most half of it); set scrub_rate too, for nothing else verifies that file when it is read."`

	Resend bool `toml:"resend" comment:"Have the kernel send again what a former daemon had read and not answered (Linux 6.9). Without, as on older kernels, such requests are kept in shared memory. It is of use for tests alone, and holds for devices that are mounted anew."`
}

// DefaultConfig returns the default configuration.
func DefaultConfig() Config {
	return Config{
		Root:        "/var/lib/lighter",
		Address:     "/run/lighter/lighter.sock",
		Hubs:        []string{"http://127.0.0.1:7070"},
		HubKeys:     []string{},
		Trust:       TrustAuto,
		Scope:       wire.DefaultScope,
		MountMode:   mount.Auto,
		CacheSize:   20 << 30,
		Prefetch:    true,
		PrefetchMax: 2 << 30,
		FreeLow:     Space{Percent: 17},
		FreeHigh:    Space{Percent: 20},
		Record:      true,
		RecordDelay: Delay(time.Minute),
		LogLevel:    "info",
		LogFormat:   "text",
		Resend:      true,

		CompleteSchedule: completion.Schedule{},
	}
}

// Check returns what is wrong with the configuration.
func (c *Config) Check() error {
	switch {
	case !filepath.IsAbs(c.Root):
		return fmt.Errorf("root %q is not an absolute path", c.Root)
	case len(c.Hubs) == 0:
		return errors.New("hubs is empty: name at least one")
	case c.CacheSize < disk.MinLimit:
		return fmt.Errorf("cache_size %s is too small: the least is %s", c.CacheSize, Size(disk.MinLimit))
	case c.PrefetchMax < 0:
		return errors.New("prefetch_limit is below zero: to fetch nothing, set prefetch to false")
	case c.FreeHigh.below(c.FreeLow):
		return fmt.Errorf("disk_free_high %s is less than disk_free_low %s: it is where evictions stop", c.FreeHigh,
			c.FreeLow)
	case c.CompleteRate < 0:
		return errors.New("complete_rate is below zero")
	case c.ScrubRate < 0:
		return errors.New("scrub_rate is below zero")
	case c.RecordDelay < 0 || time.Duration(c.RecordDelay) > maxRecordDelay:
		return fmt.Errorf("record_delay %s is not between 0s and %s", c.RecordDelay, maxRecordDelay)
	case !slices.Contains(mount.Modes(), c.MountMode):
		return fmt.Errorf("mount_mode %q is not one of %v", c.MountMode, mount.Modes())
	}
	if err := cmp.Or(control.CheckRoot(c.Root), c.checkTrust()); err != nil {
		return err
	}
	if c.Address != "" {
		if err := socket.CheckPath("address", c.Address); err != nil {
			return err
		}
	}
	for _, key := range c.HubKeys {
		if _, err := index.ParseKey(key); err != nil {
			return fmt.Errorf("hub_keys: %w", err)
		}
	}
	if c.HTTPAddress != "" {
		return socket.CheckAddress("http_address", c.HTTPAddress)
	}
	return nil
}

// prefetchLimit returns how many bytes may be prefetched for one image's start.
func (c *Config) prefetchLimit() int64 {
	if !c.Prefetch {
		return 0
	}
	return int64(min(c.PrefetchMax, c.CacheSize/2))
}

// CheckHubs returns what is wrong with the hubs' settings. It connects to none of them.
func (c *Config) CheckHubs() error {
	_, err := c.origins(discarded)
	return err
}

var discarded = slog.New(slog.DiscardHandler)

// origins returns the client of the configured hubs.
func (c *Config) origins(log *slog.Logger) (*origin.Failover, error) {
	var options []client.Options
	for _, url := range c.Hubs {
		options = append(options, client.Options{URL: url, Scope: c.Scope, PlainHTTP: c.PlainHTTP, CAFile: c.CAFile})
	}
	return origin.New(log, options...)
}

// maxRecordDelay bounds how long a trace waits in memory.
const maxRecordDelay = time.Hour
