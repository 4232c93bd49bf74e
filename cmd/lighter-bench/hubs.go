package main

import (
	"strings"

	"github.com/spf13/cobra"

	"lighter/bench"
	"lighter/bench/hubs"
)

func hubsCommand() *cobra.Command {
	o := bench.Options{Rounds: 3}
	cmd := &cobra.Command{
		Use:   "hubs [flags]",
		Short: "Measure what hubs cost: ingestion, processes, disk, requests, collections",
		Long: `Measure what hubs cost: how long they take to ingest images, with each kind of catalog and
bucket, with two processes, and if only one layer is new; how much disk space images take;
how long requests take with 1,000 images and 100,000 ended jobs; what an idle hub uses with
1,000 images, and with 64 domains; what collections free, and how much they slow down
ingestion and nodes.

It needs root, and what "test/setup postgres s3 images" makes ($LIGHTER_WORK, or work/ in
the repository). Its results are DIR/hubs.json and DIR/hubs.md; docs/benchmarks-hub.md says
what they mean. Figures: ` + strings.Join(hubs.Names(), ", ") + ".",
		Example: `  lighter-bench hubs
  lighter-bench hubs --only idle,dead,during,faults --json
  lighter-bench hubs --only ingest --before old/lighter --rounds 5`,
	}
	cmd.Flags().StringVar(&o.Before, "before", "", "lighter `FILE` of another build, to compare ingestion with")
	cmd.Flags().BoolVar(&o.JSON, "json", false, "print the results as JSON")
	return measuring(cmd, &o, hubs.Names(), hubs.Run)
}
