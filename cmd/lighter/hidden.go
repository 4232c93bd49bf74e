package main

import (
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/node/health"
	"lighter/node/keeper"
)

// keeperCommand and probeCommand are for `lighter node`, which starts them. The argument shows in
// ps which node they belong to. With --stay, a service manager without a store of descriptors
// starts the keeper (deploy/image/talos).

func keeperCommand() *cobra.Command {
	var stay bool
	cmd := hidden("keeper", "Hold a node's devices while its daemon is replaced", func(root string) error {
		if stay {
			return keeper.Stay(root)
		}
		return keeper.Run()
	})
	cmd.Flags().BoolVar(&stay, "stay", false, "be a service of its own, which waits for the node at ROOT")
	return cmd
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
