package main

import (
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/node/keeper"
)

// keeperCommand is for `lighter node` alone, which starts it.
func keeperCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "keeper ROOT",
		Short:   "Hold a node's devices while its daemon is replaced; `lighter node` starts it",
		Example: "  pgrep -af 'lighter keeper'",
		Hidden:  true,
		Args:    command.Exactly("ROOT"), // shows in ps which node it belongs to
		RunE:    func(*cobra.Command, []string) error { return keeper.Run() },
	}
}
