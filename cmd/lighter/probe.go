package main

import (
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/node/health"
)

// probeCommand is for `lighter node` alone, which starts it.
func probeCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "probe ROOT",
		Short:   "Check that a node's devices answer; `lighter node` starts it",
		Example: "  pgrep -af 'lighter probe'",
		Hidden:  true,
		Args:    command.Exactly("ROOT"),
		RunE:    func(_ *cobra.Command, args []string) error { return health.Probe(args[0]) },
	}
}
