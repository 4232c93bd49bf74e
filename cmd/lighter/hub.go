package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/hub"
)

func hubCommand() *cobra.Command {
	config := hub.DefaultConfig()
	var file string
	cmd := &cobra.Command{
		Use:   "hub [flags]",
		Short: "Run a hub: a registry from which nodes start images without pulling them whole",
		Long: `Run a hub. It ingests images that are pushed to its OCI registry or added by
"lighter add", splits them into chunks, and serves their indexes and units to nodes.

The hub keeps everything below its root directory. It signs its statements with a key
that it makes at its first start, and prints the public key, for nodes to pin.

Every client that reaches a hub can read all of it. Requests of administrators change
something (they push, add or remove images), start work or list holders. If other machines
can reach the hub, say who may make them: --admin-listen, --admin-token-file or --open.
The hub fetches images from public addresses, and from registries that the configuration
file allows (tables [[registry]]).

Flags override the configuration file, and the file overrides the defaults.`,
		Example: `  lighter hub --root /srv/lighter
  lighter hub --root /srv/lighter --listen 0.0.0.0:443 --tls-cert hub.crt --tls-key hub.key \
    --admin-listen unix:/run/lighter-hub/admin.sock
  lighter hub --root /srv/lighter --listen 0.0.0.0:443 --tls-cert hub.crt --tls-key hub.key \
    --admin-token-file /etc/lighter/token
  lighter hub --root /srv/lighter --export /srv/mirror
  lighter hub --config /etc/lighter/hub.toml`,
		Args: command.Exactly(),
	}
	hubServerFlags(cmd, &config, &file)
	cmd.AddCommand(hubKeyCommand())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := loadConfig(cmd, file, &config); err != nil {
			return err
		}
		log, flush, err := openLog(config.LogLevel, config.LogFormat)
		if err != nil {
			return err
		}
		defer flush()
		err = hub.Run(cmd.Context(), config, log)
		var at *fs.PathError
		if errors.Is(err, fs.ErrPermission) && errors.As(err, &at) && strings.HasPrefix(at.Path, config.Root) {
			err = fmt.Errorf("%w: run the hub as the owner of %s, or choose another directory with --root", err,
				config.Root)
		}
		return err
	}
	return cmd
}

// hubServerFlags are the flags of a hub, whose defaults are in config. Catalog, bucket, domains,
// registries, platforms, proxies, names, limits and gc are set by the file alone.
func hubServerFlags(cmd *cobra.Command, config *hub.Config, file *string) {
	f := cmd.Flags()
	f.StringVar(file, "config", "", "the configuration `FILE` (see: lighter config hub)")
	f.StringVar(&config.Root, "root", config.Root, "the hub's directory (`DIR`)")
	f.StringVar(&config.Listen, "listen", config.Listen, "the `ADDRESS` to listen on")
	f.StringVar(&config.AdminListen, "admin-listen", config.AdminListen,
		"the only `ADDRESS` for requests of administrators (HOST:PORT or unix:/PATH; empty: --listen)")
	f.StringVar(&config.AdminTokenFile, "admin-token-file", config.AdminTokenFile,
		"the `FILE` with the token that requests of administrators need")
	f.BoolVar(&config.Open, "open", config.Open,
		"if there is no token: allow requests of administrators from every client that reaches the hub")
	f.StringSliceVar(&config.RegistryHosts, "registry-host", config.RegistryHosts,
		"the `HOST[:PORT]` under which nodes pull from the hub's own registry; may be repeated")
	f.StringVar(&config.KeepBlobs, "keep-blobs", config.KeepBlobs,
		"`WHICH` layers of ready images the hub's registry stores: always (all), "+
			"until-upstream (those that no other registry has) or never (none)")
	f.StringVar(&config.TLSCert, "tls-cert", config.TLSCert, "the certificate (PEM `FILE`) to serve HTTPS with")
	f.StringVar(&config.TLSKey, "tls-key", config.TLSKey, "its private key (PEM `FILE`)")
	f.BoolVar(&config.PlainHTTP, "plain-http", config.PlainHTTP, "serve plain HTTP on an address that is not loopback")
	f.Int64Var(&config.ScrubDays, "scrub-days", config.ScrubDays,
		"read all objects once in this many `DAYS`, and repair damaged ones; 0: never")
	f.TextVar(&config.StartupBytes, "startup-bytes", config.StartupBytes,
		"the largest size of a domain's startup packs together (`SIZE`: 20GiB; "+
			"0: a quarter of the other packs, 8 GiB at least)")
	f.Int64Var(&config.DrainSeconds, "drain-seconds", config.DrainSeconds,
		"how many `SECONDS` requests in flight may still take when the hub gets SIGTERM")
	f.Int64Var(&config.KeepHeldDays, "keep-held-days", config.KeepHeldDays,
		"the `DAYS` for which the hub keeps what a node or a mirror has, from a week after its last report on")
	f.TextVar(&config.DiskReserve, "disk-reserve", config.DiskReserve,
		"the free space that the hub leaves on its disks (`SIZE`: 10GiB); "+
			"with less it ingests nothing, but serves what it has")
	f.StringVar(&config.Export.To, "export", config.Export.To,
		"keep a mirror, which any web server can serve to nodes, in this directory or bucket "+
			"(`PLACE`: /DIR or s3://BUCKET?region=REGION)")
	f.StringVar(&config.LogLevel, "log-level", config.LogLevel, "`LEVEL`: debug, info, warn or error")
	f.StringVar(&config.LogFormat, "log-format", config.LogFormat, "`FORMAT`: text or json")
}
