package main

import (
	"os"

	"github.com/spf13/cobra"

	"lighter/bench/many"
	"lighter/cmd/command"
)

func manyCommand() *cobra.Command {
	o := many.Default()
	cmd := &cobra.Command{
		Use:   "many [flags]",
		Short: "Measure a hub, a Squid and a link while many nodes start the same image",
		Long: `Measure a hub, a Squid and a link while many nodes start the same image at the same
time. One process simulates all nodes. Each has the connections, cache, lookups and read
path of a real node. It replays the reads and pauses of a start in a real container,
recorded a moment before.

The positions are: direct, without Squid; squid, with a Squid on the nodes' side of the link;
behind, with a Squid on the hub's side.

It has the same requirements as "lighter-bench", and needs Squid ("test/setup squid" installs it). Its
results are DIR/many.json and DIR/many.md; docs/benchmarks-many.md says what they mean.`,
		Example: `  lighter-bench many
  lighter-bench many --workloads python/hello --nodes 1,50 --positions squid`,
		Args: command.Exactly(),
	}
	f := cmd.Flags()
	f.StringVar(&o.Config, "config", "", "the configuration `FILE` of the images (see: lighter-bench config)")
	f.StringSliceVar(&o.Workloads, "workloads", o.Workloads, "start these `IMAGE/WORKLOAD`s")
	f.IntSliceVar(&o.Nodes, "nodes", o.Nodes, "start this `NUMBER` of nodes together")
	f.StringSliceVar(&o.Positions, "positions", o.Positions, "measure these `POSITIONS` of the Squid")
	f.StringVar(&o.Rate, "rate", o.Rate, "`RATE` of the link, in tc's notation")
	f.DurationVar(&o.RTT, "rtt", o.RTT, "round-trip `TIME` of the link")
	f.DurationVar(&o.Spread, "spread", o.Spread,
		"all nodes start within this `TIME`; the largest number of nodes is also started at once")
	prefetch := f.Bool("prefetch", true, "the nodes fetch startup packs, which is the default of real nodes")
	out := outFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if !*prefetch {
			o.Stream = 0
		}
		if err := o.Check(); err != nil {
			return command.Usage(err)
		}
		o.Out = *out
		if o.Lighter, err = measured(cmd); err != nil {
			return err
		}
		return many.Run(cmd.Context(), o)
	}
	return cmd
}

// nodesCommand is the command of the process that simulates nodes. It is internal.
func nodesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "nodes PLAN",
		Short: "Simulate the nodes for lighter-bench many (internal)",
		Long: `Simulate the nodes that "lighter-bench many" measures. That command starts this one on the
nodes' side of its link. It reads the file PLAN, and prints the result as JSON.`,
		Example: "  lighter-bench nodes plan.json",
		Hidden:  true,
		Args:    command.Exactly("PLAN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return many.Simulate(cmd.Context(), args[0], os.Stdout)
		},
	}
}
