package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/wire"
	"lighter/wire/client"
)

func retentionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retention [flags]",
		Short: "Show which images the retention rules of a hub would remove, and apply them",
		Long: `Show which images the retention rules of a hub would remove now, and why. The rules are in
the hub's configuration ([[retention]]), and are applied once a day. An image whose THEN
is "waits" is not removed without a confirmation, because the rules would remove more
than retention_max_percent of its repository.`,
		Example: `  lighter retention
  lighter retention --all --json | jq -r '.[] | select(.then != "goes") | .name'
  lighter retention run --confirm registry.example.org/ci/build`,
		Args: command.Exactly(),
	}
	all := cmd.Flags().Bool("all", false, "show the images that stay, too")
	hubQuery(cmd, func(ctx context.Context, hub *client.Client, _ []string) ([]wire.Verdict, error) {
		verdicts, err := hub.Retention(ctx)
		isOmitted := func(v wire.Verdict) bool { return !*all && v.Then == wire.VerdictStays }
		return slices.DeleteFunc(verdicts, isOmitted), err
	}, printVerdicts)
	cmd.AddCommand(retentionRunCommand())
	return cmd
}

func printVerdicts(verdicts []wire.Verdict) error {
	return table(os.Stdout, "IMAGE\tTHEN\tSIZE\tPUSHED\tUSED\tWHY", rowsOf(verdicts, func(v wire.Verdict) []any {
		return []any{v.Name, v.Then, size(v.Bytes), humanize.Time(v.Pushed), ago(v.Used), v.Why}
	}))
}

// ago returns how long ago a time is.
func ago(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return humanize.Time(t)
}

func retentionRunCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run [flags]",
		Short: "Apply the retention rules of a hub now",
		Long: `Apply the retention rules of a hub now, as a job. With --confirm, the job may remove any
share of that repository's images; look at "lighter retention" first.`,
		Example: `  lighter retention run
  lighter retention run --confirm registry.example.org/ci/build`,
		Args: command.Exactly(),
	}
	confirmed := cmd.Flags().StringSlice("confirm", nil,
		"the `REPOSITORY` of which any share of the images may be removed; may be repeated")
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, _ []string) (wire.Job, error) {
		return hub.ApplyRetention(ctx, *confirmed)
	}, func(j wire.Job) error {
		fmt.Printf("job %d applies the rules (lighter jobs)\n", j.N)
		return nil
	})
}
