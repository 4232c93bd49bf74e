package main

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/node"
)

func releaseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release [flags]",
		Short: "Give up the devices of a node that will not come back, so that no read waits for it",
		Long: `Give up the devices of a node that will not come back, so that no read waits for it.

While a node is replaced, or after it was killed, containers' reads that miss the page
cache wait for the next node. This command ends the waiting: these reads fail, and later
reads that miss the page cache fail, too. Only containers that were started on a local
device (local_device) read on. The node's mounts are removed. Use the command to remove
Lighter, or if no node can be started again. It refuses to run while a node runs. Files on
the disk stay, and a later node serves new containers.

Under systemd, stop the service first. Afterwards run the systemctl clean of the example:
it drops the descriptors that systemd still holds for the node.`,
		Example: "  systemctl stop lighter-node\n  lighter release\n" +
			"  systemctl clean --what=fdstore lighter-node\n\n  lighter release --root /data/lighter",
		Args: command.Exactly(),
	}
	root := rootFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return node.Release(cmd.Context(), *root, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	}
	return cmd
}
