package main

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/format/index"
	"lighter/mirror"
	"lighter/wire"
)

func mirrorCommand() *cobra.Command {
	var hubKeys []string
	cmd := &cobra.Command{
		Use:   "mirror [flags] DIR [NAME...]",
		Short: "Copy images from a hub into a directory that any web server can serve to nodes",
		Long: `Copy everything that nodes need for the named images, or for all images, from a hub into
a directory. A web server or object store that serves DIR at its root is a mirror: give
its URL to nodes with one more --hub. Nodes verify signatures and digests, so a mirror
need not be trusted. Units that DIR has are not fetched again. Nodes that have an
image's index from another hub need that hub, too.

Give the hub's key with --hub-key. Otherwise the first run learns it and keeps it in DIR,
and later runs accept no other.

The command reports to the hub what the mirror has. The hub keeps these images' data for
some weeks, even if the images are removed. Run the command at least once a week; see
"lighter holders".

A mirror lists no images: "lighter mount" by name needs a hub. It keeps what earlier runs
have copied, also images that were removed from the hub. To get rid of them, make the
mirror anew in another directory and serve that one.`,
		Example: `  lighter mirror --hub https://hub.example.org --hub-key ed25519:... /srv/mirror physics/root:6.32
  lighter node --hub https://hub.example.org --hub https://mirror.example.org --hub-key ed25519:...`,
		Args: func(cmd *cobra.Command, args []string) error {
			return command.Exactly("DIR")(cmd, args[:min(len(args), 1)])
		},
	}
	options := hubFlags(cmd)
	cmd.Flags().StringSliceVar(&hubKeys, "hub-key", nil,
		"the hub's public `KEY`; may be repeated; default: the one in DIR")
	parseKeys := func() (keys []ed25519.PublicKey, err error) {
		for _, text := range hubKeys {
			key, err := index.ParseKey(text)
			if err != nil {
				return nil, command.Usage(err)
			}
			keys = append(keys, key)
		}
		return keys, nil
	}
	copyImages := func(ctx context.Context, keys []ed25519.PublicKey, args []string) (mirror.Result, error) {
		return watch(func(show func(wire.Progress)) (mirror.Result, error) {
			m, err := mirror.New(*options, args[0], keys, show)
			if err != nil {
				return mirror.Result{}, command.Usage(err)
			}
			return m.Copy(ctx, args[1:])
		})
	}
	return query(cmd, parseKeys, copyImages, func(done mirror.Result) error {
		fmt.Printf("the mirror has %s with %s, signed with %s: %d units fetched, %d kept, %s received\n",
			english.Plural(len(done.Images), "image", ""), english.Plural(done.Trees, "tree", ""),
			strings.Join(done.Keys, " and "), done.Fetched, done.Kept, size(done.Bytes))
		if done.NotHeld != "" {
			fmt.Printf("the hub does not know what the mirror has, and may delete it with its images: %s\n",
				done.NotHeld)
		}
		return nil
	})
}
