package main

import (
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/node"
)

func nodeCommand() *cobra.Command {
	config := node.DefaultConfig()
	var file string
	cmd := &cobra.Command{
		Use:   "node [flags]",
		Short: "Run the node: a snapshotter for containerd that fetches what containers read",
		Long: `Run the node: a proxy snapshotter for containerd on a Unix socket. It mounts images that
the hub knows, and fetches only the bytes that containers read. It unpacks all other
images, as containerd's overlayfs snapshotter does.

"lighter install containerd" makes containerd use it, and "lighter install systemd" makes
a service of it. Add "remap-ids" to the capabilities in containerd if, and only if, the
node runs with --remap-ids; the former command does so.

Flags override the configuration file, and the file overrides the defaults.`,
		Example: `  lighter node --hub http://127.0.0.1:7070
  lighter node --root /data/lighter --address /run/lighter/lighter.sock \
      --hub https://hub.example.org --hub-key ed25519:... --cache-size 100GiB
  lighter node --hub https://hub.example.org --hub https://mirror.example.org --hub-key ed25519:...
  lighter node --config /etc/lighter/node.toml`,
		Args: command.Exactly(),
	}
	nodeFlags(cmd, &config, &file)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := loadConfig(cmd, file, &config); err != nil {
			return err
		}
		if err := config.CheckHubs(); err != nil {
			return command.Usage(err)
		}
		log, flush, err := openLog(config.LogLevel, config.LogFormat)
		if err != nil {
			return err
		}
		defer flush()
		return node.Run(cmd.Context(), config, log, func() {})
	}
	return cmd
}

// nodeFlags are the flags of a node, whose defaults are in config.
func nodeFlags(cmd *cobra.Command, config *node.Config, file *string) {
	f := cmd.Flags()
	f.StringVar(file, "config", "", "the configuration `FILE` (see: lighter config node)")
	f.StringVar(&config.Root, "root", config.Root, "the node's directory (`DIR`)")
	f.StringVar(&config.Address, "address", config.Address, "the Unix `SOCKET` for containerd")
	f.StringVar(&config.Containerd, "containerd", config.Containerd, "containerd's Unix `SOCKET`")
	f.StringSliceVar(&config.Blobs, "blob-namespaces", config.Blobs,
		"the `NAMESPACE`s of containerd that find the layers of lazy images (docker push); may be repeated")
	f.StringSliceVar(&config.Hubs, "hub", config.Hubs,
		"the `URL` of a hub, or of a mirror; may be repeated: the node asks the first that works")
	f.StringSliceVar(&config.HubKeys, "hub-key", config.HubKeys,
		"a hub's public `KEY`; may be repeated; required unless the only hub runs on this machine as root")
	f.StringVar((*string)(&config.Trust), "trust", string(config.Trust),
		"which pulls get their images from the hubs (`TRUST`: image, chain or auto)")
	f.StringVar(&config.Domain, "domain", config.Domain, "the `DOMAIN` on every hub")
	f.BoolVar(&config.PlainHTTP, "plain-http", config.PlainHTTP,
		"allow plain HTTP to a hub that is not on this machine")
	f.StringVar(&config.CAFile, "ca-file", config.CAFile, "certificates (PEM `FILE`) to trust for the hub")
	f.StringVar((*string)(&config.MountMode), "mount-mode", string(config.MountMode),
		"how the kernel mounts images (`MODE`: auto, file, loop or none)")
	f.BoolVar(&config.RemapIDs, "remap-ids", config.RemapIDs,
		"map owners into user namespaces; containerd needs the capability remap-ids")
	f.TextVar(&config.CacheSize, "cache-size", config.CacheSize,
		"the largest size of the chunk cache on the disk (`SIZE`: 20GiB)")
	f.BoolVar(&config.Prefetch, "prefetch", config.Prefetch, "fetch what the start of an image will probably read")
	f.TextVar(&config.PrefetchMax, "prefetch-limit", config.PrefetchMax,
		"the most that is prefetched for one image, uncompressed (`SIZE`)")
	f.BoolVar(&config.Complete, "complete", config.Complete, "fetch the rest of running images in the background")
	f.TextVar(&config.CompleteRate, "complete-rate", config.CompleteRate,
		"the background rate, in compressed bytes a second (`SIZE`; 0: all that the link has left)")
	f.StringSliceVar(&config.CompleteSchedule, "complete-schedule", config.CompleteSchedule,
		"when the background fetch runs, in local time (`WINDOWS`: 22:00-06:00; may be repeated; none: always)")
	f.BoolVar(&config.LocalDevice, "local-device", config.LocalDevice,
		"write wholly cached images to files that containers read without the node; "+
			"takes their size on the disk once more")
	f.StringVar(&config.HTTPAddress, "http-address", config.HTTPAddress,
		"the `ADDRESS` of /metrics, /healthz and /readyz (HOST:PORT or unix:/PATH)")
	f.StringVar(&config.Directory, "directory", config.Directory,
		"show all images of the hubs in this `DIR` (/lighter), for every user of the machine")
	f.TextVar(&config.Idle, "directory-idle", config.Idle,
		"unmount an image in this directory that nobody has used for this `DELAY` (5m)")
	f.StringVar((*string)(&config.Flat), "directory-flat", string(config.Flat),
		"add the files to the images in this directory that a `TOOL` wants (apptainer)")
	f.StringVar(&config.Group, "directory-group", config.Group, "only this `GROUP` may use this directory")
	f.StringSliceVar(&config.Links, "directory-links", config.Links,
		"links in this directory to hosts (`NAME=HOST`: registry.hub.docker.com=docker.io; may be repeated)")
	f.StringVar(&config.ImageStore, "image-store", config.ImageStore,
		"keep an additional image store for Podman, Buildah, Skopeo and CRI-O in this `DIR`, "+
			"for every user of the machine")
	f.StringSliceVar(&config.ImageStoreNames, "image-store-names", config.ImageStoreNames,
		"the repositories in this store (`PATTERNS`: reg.example.org/physics/*; may be repeated)")
	f.StringSliceVar(&config.Direct, "direct", config.Direct,
		"trust the tables of contents of images in these repositories, and start such images from their "+
			"registry (`PATTERNS`: reg.example.org/physics/*; may be repeated)")
	f.StringVar(&config.Kubeconfig, "kubeconfig", config.Kubeconfig,
		"use the pull secrets of this machine's pods, with the kubelet's or another kubeconfig (`FILE`)")
	f.StringVar(&config.KubernetesNode, "kubernetes-node", config.KubernetesNode,
		"the `NAME` of this node in Kubernetes; empty: that in the kubeconfig's certificate")
	f.StringSliceVar(&config.DirectVerified, "direct-verified", config.DirectVerified,
		"do so with images in these repositories once the node has read their layers, and found their tables "+
			"right (`PATTERNS`: **; may be repeated)")
	f.StringSliceVar(&config.Sources, "sources", config.Sources,
		"the sources of images that start lazily, in the order in which they are asked "+
			"(`SOURCES`: hub, attached, tables, soci)")
	f.StringSliceVar(&config.AttachedKeys, "attached-key", config.AttachedKeys,
		"start images that have an attached index of this `KEY` (ed25519:..., may be repeated) from their registry")
	f.StringSliceVar(&config.AttachedFrom, "attached-from", config.AttachedFrom,
		"look for such indexes in this repository, too (`HOST/REPO`, may be repeated)")
	f.TextVar(&config.ImageStoreRefresh, "image-store-refresh", config.ImageStoreRefresh,
		"look for new images for this store after this `DELAY` (1m)")
	f.TextVar(&config.FreeLow, "disk-free-low", config.FreeLow,
		"if less of the disk is free, the cache shrinks (`SPACE`: 17% or 50GiB; 0: never)")
	f.TextVar(&config.FreeHigh, "disk-free-high", config.FreeHigh,
		"the cache then shrinks until this much of the disk is free (`SPACE`)")
	f.TextVar(&config.ScrubRate, "scrub-rate", config.ScrubRate,
		"the rate at which the cache is verified in the background, in bytes a second (`SIZE`; 0: not at all)")
	f.BoolVar(&config.Record, "record", config.Record, "record what starts read, and report it to a hub")
	f.TextVar(&config.RecordDelay, "record-delay", config.RecordDelay,
		"the longest random delay of a report (`DELAY`: 90s)")
	f.TextVar(&config.HeldDelay, "held-delay", config.HeldDelay,
		"report a change of the node's images to the hubs after once to twice this `DELAY` (90s)")
	f.StringVar(&config.LogLevel, "log-level", config.LogLevel, "`LEVEL`: debug, info, warn or error")
	f.StringVar(&config.LogFormat, "log-format", config.LogFormat, "`FORMAT`: text or json")
}
