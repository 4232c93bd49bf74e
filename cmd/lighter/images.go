package main

import (
	"os"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
)

func imagesCommand() *cobra.Command {
	var flags hubFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "images [flags]",
		Short: "List a hub's images",
		Long: `List a hub's images, also those that failed.

UNIQUE is the size of what only this image needs: before the slash the plain bytes of
chunks that no other image has, behind it the stored bytes of these chunks and of the
image's original blobs.`,
		Example: `  lighter images
  lighter images --json | jq '.[] | select(.state == "failed")'`,
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := flags.client()
			if err != nil {
				return err
			}
			images, err := client.Images(cmd.Context(), "")
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(os.Stdout, images)
			}
			var rows [][]any
			for _, i := range images {
				rows = append(rows, []any{i.Name, short(i.Digest), i.Platform, size(i.Size), size(i.Unique) + " / " + size(i.Blobs), i.State, i.Error})
			}
			return table(os.Stdout, "NAME\tDIGEST\tPLATFORM\tSIZE\tUNIQUE\tSTATE\tERROR", rows)
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func rmCommand() *cobra.Command {
	var flags hubFlags
	cmd := &cobra.Command{
		Use:   "rm [flags] NAME",
		Short: "Remove an image from a hub",
		Long: `Remove an image from a hub. The hub no longer serves it, nor its chains, unless another
image needs them. Nodes that have mounted it keep working as long as its chunks are in
the hub's packs.`,
		Example: "  lighter rm physics/root:6.32",
		Args:    command.Exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := flags.client()
			if err != nil {
				return err
			}
			return client.Remove(cmd.Context(), args[0])
		},
	}
	flags.add(cmd)
	return cmd
}
