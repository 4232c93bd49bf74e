package main

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/wire"
	"lighter/wire/client"
)

func eventsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events [flags]",
		Short: "List what has become of a hub's images, and whether other systems were told",
		Long: `List a hub's latest events, at most 1000: images were queued, have become ready, have
failed or were removed. The hub sends some of them to the targets in its configuration
([[event]]). Below the events are those that a target is still to get. An event that a
target did not get within a day is dead: --dead lists the dead ones.`,
		Example: `  lighter events
  lighter events --dead
  lighter events --json | jq '.events[] | select(.kind == "failed")'
  lighter events retry`,
		Args: command.Exactly(),
	}
	dead := cmd.Flags().Bool("dead", false, "list events that a target did not get instead")
	hubQuery(cmd, func(ctx context.Context, hub *client.Client, _ []string) (wire.EventLog, error) {
		return hub.Events(ctx, *dead)
	}, printEvents)
	cmd.AddCommand(retryEventsCommand())
	return cmd
}

func retryEventsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry [flags] [EVENT]",
		Short: "Send dead events to their targets again",
		Long: `Send dead events to their targets again: all, or the one whose ID is EVENT. An event that
fails again is dead again.`,
		Example: `  lighter events retry
  lighter events retry 9f86d081884c7d659a2feaa0c55ad015`,
		Args: command.AtLeast(0, "EVENT"),
	}
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, args []string) (wire.Retried, error) {
		return hub.RetryEvents(ctx, argument(args, 0))
	}, func(r wire.Retried) error {
		fmt.Printf("%d deliveries are made again\n", r.Deliveries)
		return nil
	})
}

func printEvents(log wire.EventLog) error {
	if len(log.Events) > 0 {
		rows := rowsOf(log.Events, func(e wire.Event) []any {
			return []any{humanize.Time(e.At), e.Kind, e.Name, short(e.Digest), e.Platform, e.Error}
		})
		if err := table(os.Stdout, "WHEN\tEVENT\tNAME\tDIGEST\tPLATFORM\tERROR", rows); err != nil {
			return err
		}
	}
	const header = "TARGET\tEVENT\tNAME\tWHEN\tATTEMPTS\tNEXT\tID\tFAILURE"
	return section(header, log.Deliveries, func(d wire.Delivery) []any {
		next := "none: it is dead"
		if d.Dead.IsZero() {
			next = humanize.Time(d.Due)
		}
		return []any{d.Target, d.Kind, d.Name, humanize.Time(d.At), d.Attempts, next, d.ID, cmp.Or(d.Failure, "-")}
	})
}
