package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"lighter/bench"
	"lighter/bench/figures"
	"lighter/bench/starts"
	"lighter/cmd/command"
)

func startsCommand() *cobra.Command {
	var o starts.Options
	var merge bool
	cmd := &cobra.Command{
		Use:   "lighter-bench [flags] [--merge FILE...]",
		Short: "Measure how containers start with Lighter and with other snapshotters",
		Long: `Measure how containers start with Lighter and with other snapshotters, over links of
several latencies, with HelloBench's method. Each workload is started on a machine without
the image. The figures are: how long the pull takes, how long the creation of the container
takes, when the container is ready and when it ends, and the bytes received over the link.
A second container is measured, too.

It needs root, and containerd, runc and the images that "test/setup all" makes
($LIGHTER_WORK, or work/ in the repository). It runs in separate namespaces, changes
nothing on the machine, and leaves nothing behind. The default configuration takes
hours; partial results can be merged. "lighter-bench config" prints that configuration,
with every key explained.

The results are DIR/starts.json with every sample, starts.md, and plots as SVG.`,
		Example: `  lighter-bench
  lighter-bench --only python,sci/cppyy --links 1gbit-10ms --snapshotters overlayfs,lighter --rounds 1
  lighter-bench --before old/lighter --snapshotters lighter,lighter-before --only python --rounds 12
  lighter-bench --merge --out out monday/starts.json tuesday/starts.json`,
	}
	f := cmd.Flags()
	f.StringVar(&o.Before, "before", "",
		"lighter `FILE` of another build: its node is also measured, as lighter-before")
	f.StringVar(&o.Config, "config", "", "the configuration `FILE` (see: lighter-bench config)")
	f.StringSliceVar(&o.Only, "only", nil, "measure only these `IMAGE`s or IMAGE/WORKLOADs")
	f.StringSliceVar(&o.Links, "links", nil, "measure only over these `LINKS`")
	f.StringSliceVar(&o.Snapshotters, "snapshotters", nil,
		"measure only these `SNAPSHOTTERS`: overlayfs, lighter-first (no traces), lighter, "+
			"lighter-local (the floor), and the configuration's peers")
	f.IntVar(&o.Rounds, "rounds", 0, "repetitions of each measurement; 0: as in the configuration")
	f.BoolVar(&merge, "merge", false,
		"measure nothing, and merge the results in FILE...; if several have a measurement, the latest counts")
	out := outFlag(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if merge && len(args) == 0 {
			return command.Usage(errors.New("name the files to merge"))
		}
		if !merge {
			return command.Group(cmd, args)
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if merge {
			return mergeResults(*out, args)
		}
		if err := o.Check(); err != nil {
			return command.Usage(err)
		}
		o.Out = *out
		if o.Lighter, err = measured(cmd); err != nil {
			return err
		}
		return starts.Run(cmd.Context(), o)
	}
	return cmd
}

func mergeResults(out string, files []string) error {
	var all []starts.Result
	for _, file := range files {
		r, err := starts.Read(file)
		if err != nil {
			return err
		}
		all = append(all, r)
	}
	merged, err := starts.Merge(all...)
	if err != nil {
		return err
	}
	return merged.Write(out)
}

// outFlag adds the flag --out.
func outFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("out", "out", "the `DIR` of the results")
}

func figuresCommand() *cobra.Command {
	o := bench.Options{Rounds: 5}
	return measuring(&cobra.Command{
		Use:   "figures [flags]",
		Short: "Measure Lighter's other targets: reads, walks, memory, ingestion ...",
		Long: `Measure Lighter's other targets, compared with a full pull into overlayfs, or with the tools
of other snapshotters. It takes more than half an hour. bench/README.md describes each figure:

` + figures.Describe(),
		Example: "  lighter-bench figures\n  lighter-bench figures --only walk,reads --rounds 9",
	}, &o, figures.Names(), figures.Run)
}

// measuring completes a command that measures the figures with these names. o has the defaults.
func measuring(
	cmd *cobra.Command, o *bench.Options, names []string, run func(context.Context, bench.Options) error,
) *cobra.Command {
	cmd.Args = command.Exactly()
	out := outFlag(cmd)
	cmd.Flags().IntVar(&o.Rounds, "rounds", o.Rounds, "repetitions of each measurement")
	cmd.Flags().StringSliceVar(&o.Only, "only", nil, "measure only these `FIGURES`")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if err := o.Check(names); err != nil {
			return command.Usage(err)
		}
		o.Out = *out
		if o.Lighter, err = measured(cmd); err != nil {
			return err
		}
		return run(cmd.Context(), *o)
	}
	return cmd
}

func demoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "demo [flags]",
		Short:   "Run three commands of a 1.2 GB image with a full pull and with Lighter, then pull it through a hub",
		Example: "  lighter-bench demo",
		Args:    command.Exactly(),
	}
	out := outFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		lighter, err := measured(cmd)
		if err != nil {
			return err
		}
		return figures.Demo(cmd.Context(), bench.Options{Lighter: lighter, Out: *out})
	}
	return cmd
}
