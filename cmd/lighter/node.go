package main

import (
	"errors"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/node"
)

func nodeCommand() *cobra.Command {
	config := node.DefaultConfig()
	var file string
	cmd := &cobra.Command{
		Use:   "node [flags]",
		Short: "Run the node: a snapshotter for containerd that fetches what containers touch",
		Long: `Run the node: a proxy snapshotter for containerd on a Unix socket. Images that the
hub knows are mounted and only the bytes that containers touch are fetched; all
others are unpacked as overlayfs would.

containerd is told of it in its configuration:

  [proxy_plugins.lighter]
    type = "snapshot"
    address = "/run/lighter/lighter.sock"
    capabilities = ["rebase"]
    [proxy_plugins.lighter.exports]
      root = "/var/lib/lighter"
      enable_remote_snapshot_annotations = "true"
  [[plugins."io.containerd.transfer.v1.local".unpack_config]]
    platform = "linux"
    snapshotter = "lighter"

(deploy/containerd has whole files, for older versions and the kubelet too.) With
--remap-ids, "remap-ids" is one more of the capabilities, and never without.

Flags go before the configuration file, the file before the defaults.`,
		Example: `  lighter node --hub http://127.0.0.1:7070
  lighter node --root /data/lighter --address /run/lighter/lighter.sock \
      --hub https://hub.example.org --hub-key ed25519:... --cache-size 100GiB
  lighter node --hub https://hub.example.org --hub https://mirror.example.org --hub-key ed25519:...
  lighter node --config /etc/lighter/node.toml`,
		Args: command.Exactly(),
	}
	nodeFlags(cmd, &config, &file)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := effective(cmd, file, &config); err != nil {
			return err
		}
		if err := errors.Join(config.Check(), config.CheckHubs()); err != nil {
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
	f.StringVar(&config.Root, "root", config.Root, "where the node keeps everything (`DIR`)")
	f.StringVar(&config.Address, "address", config.Address, "the Unix `SOCKET` for containerd")
	f.StringSliceVar(&config.Hubs, "hub", config.Hubs, "the `URL` of a hub, or of a mirror; may be repeated: the first that works is asked")
	f.StringSliceVar(&config.HubKeys, "hub-key", config.HubKeys, "a hub's public `KEY`, whose statements are believed; may be repeated; needed unless the only hub is on this machine and root's")
	f.StringVar((*string)(&config.Trust), "trust", string(config.Trust), "for which pulls images come from the hubs (`TRUST`: image, chain or auto)")
	f.StringVar(&config.Scope, "scope", config.Scope, "the `SCOPE` on every hub")
	f.BoolVar(&config.PlainHTTP, "plain-http", config.PlainHTTP, "allow plain HTTP to a hub that is not on this machine")
	f.StringVar(&config.CAFile, "ca-file", config.CAFile, "certificates (PEM `FILE`) to trust for the hub")
	f.StringVar((*string)(&config.MountMode), "mount-mode", string(config.MountMode), "how the kernel gets at images (`MODE`: auto, file, loop or none)")
	f.BoolVar(&config.RemapIDs, "remap-ids", config.RemapIDs, "map owners into user namespaces, as containerd's capability remap-ids says")
	f.Var(&config.CacheSize, "cache-size", "the most that the chunk cache takes on the disk (`SIZE`: 20GiB)")
	f.BoolVar(&config.Prefetch, "prefetch", config.Prefetch, "fetch what starts of an image need before they ask for it")
	f.Var(&config.PrefetchMax, "prefetch-limit", "the most that is fetched so for one image, uncompressed (`SIZE`)")
	f.BoolVar(&config.Complete, "complete", config.Complete, "fetch all of the images that are run, behind all else")
	f.Var(&config.CompleteRate, "complete-rate", "how much is fetched so a second, compressed (`SIZE`; 0: what is left of the link)")
	f.Var(&config.CompleteSchedule, "complete-schedule", "when that is done, in local time (`WINDOWS`: 22:00-06:00; may be repeated; none: always)")
	f.BoolVar(&config.LocalDevice, "local-device", config.LocalDevice, "write images that are here as a whole to files that containers read without the node; takes their size of the disk once more")
	f.StringVar(&config.HTTPAddress, "http-address", config.HTTPAddress, "where /metrics, /healthz and /readyz are answered (`ADDRESS`: HOST:PORT or unix:/PATH)")
	f.Var(&config.FreeLow, "disk-free-low", "when less is free of the disk, the cache gives way (`SPACE`: 17% or 50GiB; 0: it does not look)")
	f.Var(&config.FreeHigh, "disk-free-high", "it gives way until this much is free (`SPACE`)")
	f.Var(&config.ScrubRate, "scrub-rate", "how much of the cache is verified a second, for nobody who waits (`SIZE`; 0: none)")
	f.BoolVar(&config.Record, "record", config.Record, "record what starts read, and report it to a hub (--record=false: not)")
	f.Var(&config.RecordDelay, "record-delay", "how long a report waits at most, by chance (`DELAY`: 90s)")
	f.BoolVar(&config.Resend, "resend", config.Resend, "have the kernel send again what a former daemon did not answer, if it can")
	cobra.CheckErr(f.MarkHidden("resend")) // for tests
	f.StringVar(&config.LogLevel, "log-level", config.LogLevel, "`LEVEL`: debug, info, warn or error")
	f.StringVar(&config.LogFormat, "log-format", config.LogFormat, "`FORMAT`: text or json")
}
