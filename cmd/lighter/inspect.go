package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/wire"
	"lighter/wire/client"
)

func inspectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect [flags] NAME",
		Short: "Show everything that a hub knows about an image",
		Long: `Show everything that a hub knows about an image.

"signed by" shows the keys that have signed the statement about the image, of those that the
answering process of the hub has.`,
		Example: "  lighter inspect physics/root:6.32\n  lighter inspect --json physics/root:6.32 | jq '.[0].layers'",
		Args:    command.Exactly("NAME"),
	}
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, args []string) ([]wire.Inspection, error) {
		return hub.Inspect(ctx, args[0])
	}, func(found []wire.Inspection) error {
		for _, i := range found {
			if err := printInspection(os.Stdout, i); err != nil {
				return err
			}
		}
		return nil
	})
}

func printInspection(w io.Writer, i wire.Inspection) error {
	fields := [][]any{
		{"digest", i.Digest}, {"platform", i.Platform}, {"state", i.State + " " + i.Error},
		{"chain", i.Chain}, {"tree", i.Tree}, {"signed by", strings.Join(i.SignedBy, ", ")},
		{"size", fmt.Sprintf("%s compressed, %s in %d files", size(i.Size), size(i.Bytes), i.Files)},
		{"chunks", fmt.Sprintf("%d in %d units of %d packs", i.Chunks, i.Units, i.Packs)},
		{"startup", fmt.Sprintf("%d packs, %s, in addition", i.StartupPacks, size(i.StartupBytes))},
		{"index", fmt.Sprintf("%s; %s compressed, with its locations", size(i.IndexSize), size(i.IndexWire))},
	}
	if err := table(w, i.Name, fields); err != nil {
		return err
	}
	var rows [][]any
	for n, l := range i.Layers {
		rows = append(rows, []any{n, short(l.Digest), short(l.DiffID), short(l.Chain),
			size(l.Size), size(l.Bytes), l.Entries})
	}
	return table(w, "LAYER\tDIGEST\tDIFFID\tCHAIN\tSIZE\tPLAIN\tENTRIES", rows)
}
