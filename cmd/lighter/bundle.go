package main

import (
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/node/bundle"
)

func bundleCommand() *cobra.Command {
	var o bundle.Options
	cmd := &cobra.Command{
		Use:   "bundle [flags] IMAGE DIR [COMMAND [ARG...]]",
		Short: "Make an OCI bundle of an image, for runc, crun or Slurm",
		Long: `Make an OCI bundle in DIR: config.json, made from the image's config as containerd does it,
and rootfs, a mount of the image on which the container may write. DIR is empty, or does not
exist. The image is fetched as "lighter run" fetches it.

A runtime that reads bundles needs nothing else. "lighter unbundle DIR" removes the bundle
with all that its containers have written.`,
		Example: `  lighter bundle tools/shell:1 /tmp/shell
  runc run --bundle /tmp/shell shell1
  lighter unbundle /tmp/shell`,
		Args: func(cmd *cobra.Command, args []string) error {
			return command.Exactly("IMAGE", "DIR")(cmd, args[:min(len(args), 2)])
		},
	}
	cmd.Flags().SetInterspersed(false) // flags after IMAGE are the command's
	complete := bundleFlags(cmd, &o)
	cmd.Flags().BoolVarP(&o.Spec.Terminal, "tty", "t", false, "give the container a terminal")
	cmd.Flags().StringVar(&o.Spec.Hostname, "hostname", "", "the host `NAME` without the machine's network")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := complete(args[0], args[2:]); err != nil {
			return command.Usage(err)
		}
		return bundle.Make(cmd.Context(), args[1], o)
	}
	return cmd
}

func unbundleCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "unbundle DIR",
		Short:   "Undo a bundle, and remove what its containers have written",
		Example: "  lighter unbundle /tmp/shell",
		Args:    command.Exactly("DIR"),
		RunE:    func(cmd *cobra.Command, args []string) error { return bundle.Remove(cmd.Context(), args[0]) },
	}
}
