package main

import (
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/node/health"
	"lighter/node/keeper"
)

// keeperCommand and probeCommand are for `lighter node` alone, which starts them. The argument
// shows in ps which node they belong to.

func keeperCommand() *cobra.Command {
	return hidden("keeper", "Hold a node's devices while its daemon is replaced",
		func(string) error { return keeper.Run() })
}

func probeCommand() *cobra.Command {
	return hidden("probe", "Check that a node's devices answer", health.Probe)
}

func hidden(name, short string, run func(root string) error) *cobra.Command {
	return &cobra.Command{
		Use:     name + " ROOT",
		Short:   short + "; `lighter node` starts it",
		Example: "  pgrep -af 'lighter " + name + "'",
		Hidden:  true,
		Args:    command.Exactly("ROOT"),
		RunE:    func(_ *cobra.Command, args []string) error { return run(args[0]) },
	}
}
