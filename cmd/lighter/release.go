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
		Short: "Give up the devices of a node that will not come back, so that nothing waits for it",
		Long: `Give up the devices of a node that will not come back, so that nothing waits for it.

While a node is replaced, or after it was killed, what containers read of its
images waits for the next one. This ends the waiting: those reads fail, as do all
others that are not in memory, and the node's mounts are taken away. It is for
whoever removes Lighter, or cannot start a node again; it refuses while one runs.
What is on the disk stays, and a node that is started later serves new containers.

Under systemd, stop the service first; what it kept of the node goes with
"systemctl clean --what=fdstore lighter-node".`,
		Example: "  systemctl stop lighter-node\n  lighter release\n  lighter release --root /data/lighter",
		Args:    command.Exactly(),
	}
	root := rootFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return node.Release(cmd.Context(), *root, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	}
	return cmd
}
