package node

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"lighter/bytesize"
	"lighter/format/index"
	"lighter/node/completion"
	"lighter/node/control"
	"lighter/node/direct"
	"lighter/node/front/containerd/blobs"
	"lighter/node/mount"
	"lighter/node/resolver"
	"lighter/registries"
	"lighter/socket"
	"lighter/store/disk"
	"lighter/store/origin"
	"lighter/store/repository"
	"lighter/wire"
	"lighter/wire/client"
	"lighter/wire/pattern"
)

// Config is a node's configuration, in TOML. `lighter config node` prints it.
type Config struct {
	Root    string   `toml:"root" comment:"Directory for the node's cache, trees and mounts. It must be on an ordinary local file system."`
	Address string   `toml:"address" comment:"Unix socket on which containerd reaches the snapshotter. Empty: no snapshotter."`
	Hubs    []string `toml:"hubs" comment:"URLs of hubs, and of mirrors with the same content. The node asks the first one that works."`
	HubKeys []string `toml:"hub_keys" comment:"Public keys (ed25519:...) of the hubs. The node believes only statements that one of them has signed. Empty: the node learns the keys of its hub when it first needs them. It can do that only if it has a single hub, on this machine, which root or the node's own user runs. Otherwise set the keys here."`
	Trust   Trust    `toml:"trust" comment:"Which pulls get their images from the hubs. image: pulls of a manifest that a hub knows from the pull's repository. containerd has fetched this manifest from the registry, so the registry has permitted the pull. (Needs enable_remote_snapshot_annotations.) chain: all pulls of layers that a hub knows. Everybody who may start containers on this machine can then start every image of the hub, even without credentials for it. auto: chain if all hubs are on this machine, and direct, direct_verified and attached_keys are empty, else image."`
	Domain  string   `toml:"domain" comment:"Domain on every hub: the node uses only the images of this domain."`
	// Scope is Domain's name in files of earlier versions.
	Scope       string        `toml:"scope,omitempty"`
	PlainHTTP   bool          `toml:"plain_http" comment:"Allow plain HTTP to a hub that is not on this machine."`
	CAFile      string        `toml:"ca_file" comment:"Certificates (PEM) to trust for the hubs, in addition to those of the system."`
	MountMode   mount.Mode    `toml:"mount_mode" comment:"How the kernel reads images. file: as files (Linux 6.12). loop: through loop devices (Linux 5.16). none: not at all, so every image is unpacked. auto: file if the kernel can, else loop, else none."`
	RemapIDs    bool          `toml:"remap_ids" comment:"Map file owners into user namespaces with ID-mapped mounts (Linux 5.19). Set it if, and only if, containerd's configuration declares the capability remap-ids for the snapshotter."`
	Containerd  string        `toml:"containerd" comment:"containerd's Unix socket. Over it the node writes the layers of docker commit, nerdctl commit, ctr snapshots diff and builds. It also reads there what pulls have fetched, and what containers of images without startup packs are about to run. Empty: containerd makes the layers by itself, and reads whole images for that. Such images start later."`
	Blobs       []string      `toml:"blob_namespaces" comment:"Namespaces of containerd in which docker push, docker save, ctr images export and the like find the layers of lazy images, which containerd has not downloaded: [\"moby\"] for Docker, [\"default\"] for ctr and nerdctl. The node fetches a layer from the hub when it is first read. containerd then counts these layers as its own. Kubernetes (k8s.io) does not need this. Empty: nowhere."`
	CacheSize   bytesize.Size `toml:"cache_size" comment:"Limit of the chunk cache on the disk: 20GiB or 500MB. Its index takes 55 to 85 bytes of memory a chunk. A chunk has 64 KiB on average, and less if files are small. So a full cache of 20 GiB takes 20 to 55 MB of memory, and one of 1 TiB takes 1 to 3 GB."`
	Prefetch    bool          `toml:"prefetch" comment:"Before a start reads them, fetch the chunks that the hub expects it to read, or, if they are cached, load them into memory. If a hub is far away, also fetch the rest of a file that is read."`
	PrefetchMax bytesize.Size `toml:"prefetch_limit" comment:"Limit of what is prefetched for one start, in uncompressed bytes. It is never more than half of cache_size."`
	FreeLow     Space         `toml:"disk_free_low" comment:"If less than this is free on the cache's disk, the cache evicts chunks, down to a sixteenth of cache_size (at least 16 MiB). The cache also stops growing so that this much stays free. A share (17%) or a size (50GiB). 0: ignore the disk's free space.\nThe kubelet removes unused images when 15 % are free (imageGCHighThresholdPercent 85), and evicts pods at imagefs.available<15% and nodefs.available<10%. Keep this value above the kubelet's."`
	FreeHigh    Space         `toml:"disk_free_high" comment:"When less than disk_free_low is free, the cache evicts chunks until this much is free."`
	ScrubRate   bytesize.Size `toml:"scrub_rate" comment:"The node reads and verifies the cache, the mounted metadata images and the local devices in the background (scrubbing). This is the number of bytes a second: 10MiB, for example. 0: no scrubbing. Damaged chunks are also noticed when they are read, and damaged metadata images when they are mounted. Without scrubbing, nothing notices damage of a mounted metadata image or of a finished local device."`
	Record      bool          `toml:"record" comment:"Record which parts of an image its first container reads when it starts, and report them to a hub. Later starts then fetch these parts together. The report does not say what ran, where or when. (lighter trace record records one start.)"`
	RecordDelay Delay         `toml:"record_delay" comment:"A trace is reported after a random delay of at most this long. So a hub does not get the traces of thousands of nodes at the same time. If a hub is on this machine, there is no delay."`
	HeldDelay   Delay         `toml:"held_delay" comment:"When the node's images change, it reports them to the hubs after a random delay of one to two times this. A hub keeps what nodes have reported. Twice this must be shorter than the hub's delay after which it frees a removed image (delay_minutes in [gc])."`
	HTTPAddress string        `toml:"http_address" comment:"Address of /metrics, /healthz and /readyz: HOST:PORT, or unix:/PATH, which only root can open. Empty: none."`
	Directory   string        `toml:"directory" comment:"Where the node shows all images of the hubs, for tools that take a directory as a container's root: /lighter, for example. An image is mounted when somebody looks into it. Every user of this machine can then read every image of the domain. Empty: nowhere."`
	Idle        Delay         `toml:"directory_idle" comment:"An image in this directory that nobody has used for this long is unmounted. Its tree stays on the disk until many other images were used."`
	Flat        Flat          `toml:"directory_flat" comment:"Which files the images in this directory have besides their own. apptainer: those by which Apptainer and SingularityCE know an image's environment, entry point and labels. Empty: none."`
	Group       string        `toml:"directory_group" comment:"Only this group of users, and root, may use this directory. Empty: everybody may."`
	Links       []string      `toml:"directory_links" comment:"Symbolic links in this directory, as NAME=HOST. An example for names as CVMFS has them: registry.hub.docker.com=docker.io."`
	ImageStore  string        `toml:"image_store" comment:"Directory for an additional image store, in which Podman, Buildah, Skopeo and CRI-O find the images of the hubs without pulling them: /var/lib/lighter-images, for example (lighter install podman). Every user of this machine can then read every image of the domain. Empty: none."`

	ImageStoreNames   []string `toml:"image_store_names" comment:"Patterns of the repositories in this store: [\"reg.example.org/physics/*\"]. * matches any characters but /, and ** any number of parts. The tools read the whole list for each command, so choose some if the hub has thousands of images."`
	ImageStoreRefresh Delay    `toml:"image_store_refresh" comment:"How often the node asks a hub for new images for this store."`

	LogLevel  string `toml:"log_level" comment:"What is logged: debug, info, warn or error."`
	LogFormat string `toml:"log_format" comment:"Format of the log: text or json."`

	Direct []string `toml:"direct" comment:"Patterns of repositories whose images start straight from their registry, without a hub, if their layers have tables of contents (eStargz, zstd:chunked) or the image has a SOCI index. [\"reg.example.org/physics/**\"], for example. The node cannot see whether a table lists the files of its layer. So whoever may push to these repositories can put files into every image on this machine that has a layer with the same diffID. Name only repositories that you trust as much as the hubs. Empty: none."`

	Sources []string `toml:"sources" comment:"Who is asked whether an image can start lazily, in this order, until one knows it. hub: the hubs. attached: an index that lighter attach has attached to the image (attached_keys). tables: tables of contents in the image's layers (eStargz, zstd:chunked). soci: a SOCI index. tables and soci are for the repositories in direct. A source that is not in the list is not asked. An image that none knows is pulled as usual."`

	AttachedKeys []string `toml:"attached_keys" comment:"Public keys (ed25519:...) of attached indexes: lighter attach prints its key. Images of any registry that have an index of such a key start without a hub. The key of a hub in hub_keys does not count here unless it is in this list, too. Empty: attached indexes are not looked for."`
	AttachedFrom []string `toml:"attached_from" comment:"Repositories with indexes for images of other repositories (lighter attach --to): [\"reg.example.org/indexes\"]. They are asked in addition to the image's own repository."`

	DirectVerified []string `toml:"direct_verified" comment:"Patterns of further repositories. Their images start straight from their registry once the node has read all of their layers, and found in them what the tables list. So nobody there has to be trusted, and the first pull of an image is an ordinary one. [\"**\"]: all repositories. The node reads these layers in the background, as complete_rate and complete_schedule allow it. It also reads those of direct. An image with a wrong table is reported, and never mounted again. Empty: none."`

	Complete         bool          `toml:"complete" comment:"Fetch the rest of running images in the background. The fetch pauses while the cache would have to evict chunks for it."`
	CompleteRate     bytesize.Size `toml:"complete_rate" comment:"Limit of this background fetch, and of the reading of layers to verify them (direct), in compressed bytes a second: 10MiB. 0: no limit. Reads of containers go first in any case."`
	CompleteSchedule []string      `toml:"complete_schedule" comment:"When the node fetches in the background (complete, and layers that it verifies), in local time: [\"22:00-06:00\"]. Empty: always."`
	LocalDevice      bool          `toml:"local_device" comment:"When all chunks of an image are cached, write them to a file. Later mounts read this file, and need no daemon. Each file is as large as the image. All of them count in cache_size, and take at most half of it. Set scrub_rate, too: nothing else verifies a finished file."`

	Kubeconfig     string `toml:"kubeconfig" comment:"A kubeconfig with which the node watches the pods of its Kubernetes node, and gets their pull secrets (imagePullSecrets), for the registries without a login below: the kubelet's, for example, which may read those of its own pods only (/etc/kubernetes/kubelet.conf, /var/lib/kubelet/kubeconfig). Empty: pull secrets are not used."`
	KubernetesNode string `toml:"kubernetes_node" comment:"The name of the Kubernetes node. Empty: the one in the kubeconfig's client certificate."`

	Registries []registries.Registry `toml:"registry" comment:"Registries that the node reads (direct), as tables [[registry]] with host and what the node needs for it: private, plain_http, ca, requests_per_second, connections, and one of logins, helper, plugin, username with password_file, and token_file. Registries with public addresses that need no login need no table."`
}

// DefaultConfig returns the default configuration.
func DefaultConfig() Config {
	return Config{
		Root:        "/var/lib/lighter",
		Address:     "/run/lighter/lighter.sock",
		Hubs:        []string{"http://127.0.0.1:7070"},
		HubKeys:     []string{},
		Trust:       TrustAuto,
		Domain:      wire.DefaultDomain,
		MountMode:   mount.Auto,
		Containerd:  "/run/containerd/containerd.sock",
		CacheSize:   20 << 30,
		Prefetch:    true,
		PrefetchMax: 2 << 30,
		FreeLow:     Space{Percent: 17},
		FreeHigh:    Space{Percent: 20},
		Record:      true,
		RecordDelay: Delay(time.Minute),
		HeldDelay:   Delay(time.Minute),
		Idle:        Delay(5 * time.Minute),
		Links:       []string{},

		ImageStoreNames:   []string{"**"},
		ImageStoreRefresh: Delay(time.Minute),

		LogLevel:  "info",
		LogFormat: "text",

		CompleteSchedule: []string{},
		Blobs:            []string{},
		Direct:           []string{},
		DirectVerified:   []string{},
		AttachedKeys:     []string{},
		AttachedFrom:     []string{},
		Sources:          append([]string{sourceHub}, direct.Formats()...),
	}
}

// Check returns an error that says what is wrong with the configuration, or nil.
func (c *Config) Check() error {
	switch {
	case !filepath.IsAbs(c.Root):
		return fmt.Errorf("root %q is not an absolute path", c.Root)
	case len(c.Hubs) == 0 && !c.readsRegistries():
		return errors.New("hubs is empty: name at least one hub, or repositories in direct or direct_verified, or " +
			"set attached_keys")
	case c.CacheSize < disk.MinLimit:
		return fmt.Errorf("cache_size %s is too small: the least is %s", c.CacheSize, bytesize.Size(disk.MinLimit))
	case c.PrefetchMax < 0:
		return errors.New("prefetch_limit is below zero: to fetch nothing, set prefetch to false")
	case c.FreeHigh.below(c.FreeLow):
		return fmt.Errorf("disk_free_high %s is less than disk_free_low %s: evictions begin below the low value and "+
			"stop at the high one", c.FreeHigh, c.FreeLow)
	case c.CompleteRate < 0:
		return errors.New("complete_rate is below zero")
	case c.ScrubRate < 0:
		return errors.New("scrub_rate is below zero")
	case c.RecordDelay < 0 || time.Duration(c.RecordDelay) > maxRecordDelay:
		return fmt.Errorf("record_delay %s is not between 0s and %s", c.RecordDelay, maxRecordDelay)
	case time.Duration(c.HeldDelay) < minHeldDelay || time.Duration(c.HeldDelay) > maxHeldDelay:
		return fmt.Errorf("held_delay %s is not between %s and %s", c.HeldDelay, minHeldDelay, maxHeldDelay)
	case c.Scope != "" && c.Scope != wire.DefaultDomain:
		return fmt.Errorf("scope %q: the key is called domain now", c.Scope)
	case !slices.Contains(trusts, c.Trust):
		return fmt.Errorf("trust %q is not one of %v", c.Trust, trusts)
	case !slices.Contains(mount.Modes(), c.MountMode):
		return fmt.Errorf("mount_mode %q is not one of %v", c.MountMode, mount.Modes())
	}
	if err := control.CheckRoot(c.Root); err != nil {
		return err
	}
	if err := c.checkDirectory(); err != nil {
		return err
	}
	if err := c.checkBlobs(); err != nil {
		return err
	}
	if err := c.checkStore(); err != nil {
		return err
	}
	if err := c.checkDirect(); err != nil {
		return err
	}
	for _, s := range []struct{ key, path string }{{"address", c.Address}, {"containerd", c.Containerd}} {
		if err := socket.CheckPath(s.key, s.path); s.path != "" && err != nil {
			return err
		}
	}
	for _, key := range c.HubKeys {
		if _, err := index.ParseKey(key); err != nil {
			return fmt.Errorf("hub_keys: %w", err)
		}
	}
	if _, err := completion.ParseSchedule(c.CompleteSchedule); err != nil {
		return fmt.Errorf("complete_schedule: %w", err)
	}
	if c.HTTPAddress != "" {
		return socket.CheckAddress("http_address", c.HTTPAddress)
	}
	return nil
}

// checkDirectory returns an error if the directory of images cannot be where it is configured.
func (c *Config) checkDirectory() error {
	dir, root := filepath.Clean(c.Directory), filepath.Clean(c.Root)
	switch {
	case time.Duration(c.Idle) < minIdle || time.Duration(c.Idle) > maxIdle:
		return fmt.Errorf("directory_idle %s is not between %s and %s", c.Idle, minIdle, maxIdle)
	case c.Directory == "":
		return nil
	case !filepath.IsAbs(dir):
		return fmt.Errorf("directory %q is not an absolute path", c.Directory)
	case dir == "/":
		return errors.New("directory cannot be /: choose a directory for the images alone")
	case within(dir, root):
		return fmt.Errorf("directory %s and root %s are in each other: choose two separate directories", dir, root)
	case !slices.Contains(flats, c.Flat):
		return fmt.Errorf("directory_flat %q is not one of %q", c.Flat, flats)
	}
	_, err := c.links()
	return err
}

// links returns the hosts that directory_links has for names.
func (c *Config) links() (map[string]string, error) {
	links := map[string]string{}
	for _, link := range c.Links {
		name, host, _ := strings.Cut(link, "=")
		if !isHost(name) || !isHost(host) || name == host {
			return nil, fmt.Errorf("directory_links: %q is not NAME=HOST, two names of hosts", link)
		}
		links[name] = host
	}
	return links, nil
}

// isHost reports whether a name can be that of a registry's host: HOST or HOST:PORT.
func isHost(name string) bool {
	ref, err := wire.ParseName(name + "/a:1")
	return err == nil && ref.Name() == name+"/a:1"
}

// group returns the number of the group in directory_group, or 0.
func (c *Config) group() (int, error) {
	if c.Group == "" {
		return 0, nil
	}
	group, err := user.LookupGroup(c.Group)
	if err != nil {
		group, err = user.LookupGroupId(c.Group)
	}
	if err != nil {
		return 0, fmt.Errorf("directory_group: this machine has no group %s", c.Group)
	}
	number, err := strconv.Atoi(group.Gid)
	if err == nil && number == 0 {
		err = fmt.Errorf("directory_group %s is the group of root: leave it empty, or name another group", c.Group)
	}
	return number, err
}

// checkBlobs returns an error if a namespace of containerd cannot have the layers of lazy images.
func (c *Config) checkBlobs() error {
	if len(c.Blobs) > 0 && c.Containerd == "" {
		return errors.New("blob_namespaces is set, and containerd is empty: set containerd to its Unix socket")
	}
	for _, name := range c.Blobs {
		if err := blobs.CheckNamespace(name); err != nil {
			return fmt.Errorf("blob_namespaces: %w", err)
		}
	}
	return nil
}

// checkStore returns an error if the image store cannot be where it is configured.
func (c *Config) checkStore() error {
	for _, p := range c.ImageStoreNames {
		if err := pattern.Check(p); err != nil {
			return fmt.Errorf("image_store_names: %w", err)
		}
	}
	dir := filepath.Clean(c.ImageStore)
	if refresh := time.Duration(c.ImageStoreRefresh); refresh < minIdle || refresh > maxIdle {
		return fmt.Errorf("image_store_refresh %s is not between %s and %s", c.ImageStoreRefresh, minIdle, maxIdle)
	}
	if c.ImageStore == "" {
		return nil
	}
	if !filepath.IsAbs(dir) || dir == "/" {
		return fmt.Errorf("image_store %q is not the absolute path of a directory", c.ImageStore)
	}
	for _, other := range []struct{ key, dir string }{{"root", c.Root}, {"directory", c.Directory}} {
		if other.dir != "" && within(dir, filepath.Clean(other.dir)) {
			return fmt.Errorf("image_store %s and %s %s are in each other: choose two separate directories", dir,
				other.key, other.dir)
		}
	}
	return nil
}

// checkRepositories returns an error if a pattern is invalid, or matches no HOST[:PORT]/PATH. A
// host has a dot or a port, or is localhost: otherwise references mean a repository of docker.io.
func checkRepositories(p string) error {
	if err := pattern.Check(p); err != nil {
		return err
	}
	host, _, hasPath := strings.Cut(p, "/")
	if p == "**" || hasPath && (host == "localhost" || strings.ContainsAny(host, ".:*?[")) {
		return nil
	}
	return fmt.Errorf("%q matches no repository, HOST[:PORT]/PATH: write reg.example.org/ci/** for those below ci, "+
		"or reg.example.org/** for all of a registry", p)
}

// checkDirect returns an error if registries cannot be read as configured.
func (c *Config) checkDirect() error {
	for _, p := range c.Direct {
		if err := checkRepositories(p); err != nil {
			return fmt.Errorf("direct: %w", err)
		}
	}
	for _, p := range c.DirectVerified {
		if err := checkRepositories(p); err != nil {
			return fmt.Errorf("direct_verified: %w", err)
		}
	}
	for _, key := range c.AttachedKeys {
		if _, err := index.ParseKey(key); err != nil {
			return fmt.Errorf("attached_keys: %w", err)
		}
	}
	for _, in := range c.AttachedFrom {
		if err := repository.CheckName(in); err != nil {
			return fmt.Errorf("attached_from: %w", err)
		}
	}
	if len(c.AttachedFrom) > 0 && len(c.AttachedKeys) == 0 {
		return errors.New("attached_from is set, and attached_keys is empty: no index would be believed")
	}
	if c.readsRegistries() && c.Trust == TrustChain {
		return errors.New("direct, direct_verified or attached_keys is set, and trust is chain: a pull from any " +
			"repository would get the direct images; set trust to image or auto")
	}
	if err := c.checkSources(); err != nil {
		return err
	}
	return registries.Check(c.Registries)
}

// readsRegistries reports whether images may start from their registry, without a hub.
func (c *Config) readsRegistries() bool {
	return len(c.Direct)+len(c.DirectVerified)+len(c.AttachedKeys) > 0
}

// sourceHub is the word for the hubs in sources. The other words are those of direct.Formats.
const sourceHub = "hub"

// checkSources returns an error if the sources are not known, or if the node has none of them.
func (c *Config) checkSources() error {
	known := append([]string{sourceHub}, direct.Formats()...)
	usable := false
	for i, source := range c.Sources {
		switch {
		case !slices.Contains(known, source):
			return fmt.Errorf("sources: %q is not one of %s", source, strings.Join(known, ", "))
		case slices.Contains(c.Sources[:i], source):
			return fmt.Errorf("sources: %s is in the list twice", source)
		case source == sourceHub:
			usable = usable || len(c.Hubs) > 0
		default:
			usable = usable || c.readsRegistries()
		}
	}
	if !usable {
		return fmt.Errorf("sources: none of %q is there: hub needs hubs, attached needs attached_keys, and the others "+
			"need repositories in direct", c.Sources)
	}
	return nil
}

// within reports whether one of two directories is in the other.
func within(a, b string) bool {
	return strings.HasPrefix(a+"/", b+"/") || strings.HasPrefix(b+"/", a+"/")
}

// prefetchLimit returns how many uncompressed bytes may be prefetched for one start.
func (c *Config) prefetchLimit() int64 {
	if !c.Prefetch {
		return 0
	}
	return int64(min(c.PrefetchMax, c.CacheSize/2))
}

// CheckHubs returns an error that says what is wrong with the hubs' settings, or nil. Hubs whose
// keys are not pinned, and cannot be learned, are wrong, too. It connects to no hub.
func (c *Config) CheckHubs() error {
	hubs, err := c.origins(noLog)
	if err == nil && len(c.Hubs) > 0 {
		if _, err = resolver.NewKeys(c.Root, c.HubKeys, hubs); errors.Is(err, fs.ErrPermission) {
			err = nil // only root can read learned keys, and the node says that it needs root
		}
	}
	return err
}

var noLog = slog.New(slog.DiscardHandler)

// origins returns the client of the configured hubs.
func (c *Config) origins(log *slog.Logger) (*origin.Failover, error) {
	var options []client.Options
	for _, url := range c.Hubs {
		options = append(options, client.Options{URL: url, Domain: c.Domain, PlainHTTP: c.PlainHTTP, CAFile: c.CAFile})
	}
	return origin.New(log, options...)
}

// maxRecordDelay bounds record_delay. A trace may wait in memory for longer, because earlier traces
// are sent first, sending yields to readers, and a failed attempt is repeated after a pause.
const maxRecordDelay = time.Hour

// minHeldDelay and maxHeldDelay bound held_delay. The lower bound limits how often the node lists
// its trees. The upper bound limits how long a hub does not know of a new tree: for twice as long
// at most, if the hub accepts the report.
const minHeldDelay, maxHeldDelay = time.Second, time.Hour

// minIdle and maxIdle bound directory_idle and image_store_refresh.
const minIdle, maxIdle = time.Second, 24 * time.Hour
