package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

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
until then a new image shows "-", and other images show the previous size.

With --watch the command prints each image with its state, and then each change, until
Ctrl-C: queued, active, ready, failed, stored, removed. With --json, a change is a line.`,
		Example: `  lighter images
  lighter images --json | jq '.[] | select(.state == "failed")'
  lighter images --watch --json | jq --unbuffered -r 'select(.kind == "ready") | .name'`,
		Args: command.Exactly(),
	}
	follow := cmd.Flags().Bool("watch", false, "print each change as it happens, until Ctrl-C")
	newClient := hubClient(cmd)
	query(cmd, newClient, func(ctx context.Context, hub *client.Client, _ []string) ([]wire.Image, error) {
		return hub.Images(ctx, "")
	}, func(images []wire.Image) error {
		rows := rowsOf(images, func(i wire.Image) []any {
			return []any{i.Name, short(i.Digest), i.Platform, size(i.Size), unique(i), i.State, i.Error}
		})
		return table(os.Stdout, "NAME\tDIGEST\tPLATFORM\tSIZE\tUNIQUE\tSTATE\tERROR", rows)
	})
	list := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !*follow {
			return list(cmd, args)
		}
		hub, err := newClient()
		if err != nil {
			return err
		}
		each := printChange
		if cmd.Flags().Changed("json") {
			each = json.NewEncoder(os.Stdout).Encode
		}
		err = hub.WatchImages(cmd.Context(), "", func(e wire.Event) error { return each(e) })
		if cmd.Context().Err() != nil {
			return nil // Ctrl-C ends the list as intended
		}
		return reachable(cmd, err)
	}
	return cmd
}

// printChange prints a change of an image as a line.
func printChange(change any) error {
	e, _ := change.(wire.Event)
	_, err := fmt.Println(strings.TrimSpace(strings.Join([]string{e.At.Local().Format(time.DateTime), e.Kind, e.Name,
		short(e.Digest), e.Platform, e.Error}, "  ")))
	return err
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
with that digest; otherwise the error lists the names of the image with that digest.

If a wishlist or a hook wants the image, the hub names it and removes nothing. With --force it
removes the image, which comes back when the wishlist looks again or the hook gets an event.`,
		Example: `  lighter rm physics/root:6.32
  lighter rm --force registry.example.org/physics/root:6.32`,
		Args: command.Exactly("NAME"),
	}
	force := cmd.Flags().Bool("force", false, "remove the image even if a wishlist or a hook wants it")
	return run(cmd, hubClient(cmd), func(ctx context.Context, hub *client.Client, args []string) error {
		if *force {
			return hub.RemoveAnyway(ctx, args[0])
		}
		return hub.Remove(ctx, args[0])
	})
}
