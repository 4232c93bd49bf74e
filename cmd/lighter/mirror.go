package main

import (
	"crypto/ed25519"
	"fmt"
	"os"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/format/index"
	"lighter/mirror"
)

func mirrorCommand() *cobra.Command {
	var flags hubFlags
	var hubKeys []string
	var asJSON bool
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

A mirror lists no images: "lighter mount" by name needs a hub.`,
		Example: `  lighter mirror --hub https://hub.example.org --hub-key ed25519:... /srv/mirror physics/root:6.32
  lighter node --hub https://hub.example.org --hub https://mirror.example.org --hub-key ed25519:...`,
		Args: func(cmd *cobra.Command, args []string) error {
			return command.Exactly("DIR")(cmd, args[:min(len(args), 1)])
		},
	}
	flags.add(cmd)
	cmd.Flags().StringSliceVar(&hubKeys, "hub-key", nil,
		"the hub's public `KEY`; may be repeated; default: the one in DIR")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var keys []ed25519.PublicKey
		for _, text := range hubKeys {
			key, err := index.ParseKey(text)
			if err != nil {
				return command.Usage(err)
			}
			keys = append(keys, key)
		}
		bars := newProgress()
		m, err := mirror.New(flags.options, args[0], keys, bars.show)
		if err != nil {
			bars.end()
			return command.Usage(err)
		}
		done, err := m.Copy(cmd.Context(), args[1:])
		bars.end()
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(os.Stdout, done)
		}
		fmt.Printf("%s has %s with %s, signed with %s: %d units fetched, %d kept, %s received\n", args[0],
			english.Plural(len(done.Images), "image", ""), english.Plural(done.Trees, "tree", ""), strings.Join(done.Keys, " and "),
			done.Fetched, done.Kept, size(done.Bytes))
		return nil
	}
	return cmd
}
