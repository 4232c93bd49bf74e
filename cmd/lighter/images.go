package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/wire"
	"lighter/wire/client"
)

func imagesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "images [flags]",
		Short: "List a hub's images",
		Long: `List a hub's images, also those that failed.

UNIQUE is the size of what only this image needs: before the slash the plain bytes of
chunks that no other image has, after it the stored bytes of these chunks and of the
image's original blobs. The hub computes it in the background when the image is ready;
until then a new image shows "-", and other images show the previous size.`,
		Example: `  lighter images
  lighter images --json | jq '.[] | select(.state == "failed")'`,
		Args: command.Exactly(),
	}
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, _ []string) ([]wire.Image, error) {
		return hub.Images(ctx, "")
	}, func(images []wire.Image) error {
		rows := rowsOf(images, func(i wire.Image) []any {
			return []any{i.Name, short(i.Digest), i.Platform, size(i.Size), unique(i), i.State, i.Error}
		})
		return table(os.Stdout, "NAME\tDIGEST\tPLATFORM\tSIZE\tUNIQUE\tSTATE\tERROR", rows)
	})
}

// unique returns column UNIQUE of an image.
func unique(i wire.Image) string {
	if i.State != wire.StateReady || i.SizesPending && i.Unique == 0 && i.Blobs == 0 {
		return "-"
	}
	return size(i.Unique) + " / " + size(i.Blobs)
}

func rmCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm [flags] NAME",
		Short: "Remove an image from a hub",
		Long: `Remove an image from a hub. The hub no longer lists it, and its registry no longer has the name.
Nodes that have the image keep working: the hub keeps what they report to have (see
"lighter holders"). It frees the rest later (see "lighter gc").

An image with several names loses only this one. NAME has a digest only if the image was added
with that digest; otherwise the error lists the names of the image with that digest.`,
		Example: "  lighter rm physics/root:6.32",
		Args:    command.Exactly("NAME"),
	}
	return run(cmd, hubClient(cmd), func(ctx context.Context, hub *client.Client, args []string) error {
		return hub.Remove(ctx, args[0])
	})
}
