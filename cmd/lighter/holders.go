package main

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/wire"
	"lighter/wire/client"
)

func holdersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "holders [flags] [IMAGE]",
		Short: "List the nodes and mirrors that have images of a hub, and forget one",
		Long: `List the nodes and mirrors that have images of a hub, or, with IMAGE, those that have this
image. The list is sorted by the time of the last report, the latest last. Nodes report
what they have every six hours, and soon after a change. The hub keeps what a holder has,
even if the image was removed, until the date in KEPT UNTIL: a week and keep_held_days
after the last report. A holder is overdue if it has not reported for a week. One holder,
"others", stands for all that the hub has no room to list.
The hub gives the list to administrators only (--token-file).`,
		Example: `  lighter holders
  lighter holders physics/root:6.32
  lighter holders --json | jq '.[] | select(.state == "overdue")'
  lighter holders rm 1f3a5c7e9b2d4f60`,
		Args: command.AtLeast(0, "IMAGE"),
	}
	hubQuery(cmd, func(ctx context.Context, hub *client.Client, args []string) ([]wire.Holder, error) {
		if len(args) > 0 {
			return hub.Holders(ctx, args[0])
		}
		return hub.Holders(ctx, "")
	}, func(holders []wire.Holder) error {
		return table(os.Stdout, "HOLDER\tKIND\tNAME\tADDRESS\tTREES\tSTATE\tSEEN\tKEPT UNTIL",
			rowsOf(holders, func(h wire.Holder) []any {
				return []any{h.ID, h.Kind, cmp.Or(h.Name, "-"), cmp.Or(h.Address, "local"), h.Trees, h.State,
					humanize.Time(h.Seen), h.Until.Local().Format(time.DateOnly)}
			}))
	})
	cmd.AddCommand(holdersRmCommand())
	return cmd
}

func holdersRmCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm [flags] HOLDER",
		Short: "Make the hub forget what a node or a mirror has",
		Long: `Make the hub forget what a node or a mirror has, for example because its machine no longer
exists. HOLDER is the ID that "lighter holders" shows. A node that still runs reports again.`,
		Example: "  lighter holders rm 1f3a5c7e9b2d4f60",
		Args:    command.Exactly("HOLDER"),
	}
	return run(cmd, hubClient(cmd), func(ctx context.Context, hub *client.Client, args []string) error {
		return hub.ForgetHolder(ctx, args[0])
	})
}
