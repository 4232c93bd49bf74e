package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/wire"
	"lighter/wire/client"
)

func verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify [flags] NAME",
		Short: "Read every byte of an image back on the hub and check it",
		Long: `Read every byte of an image back on the hub. The hub checks each chunk against its ID and
each layer against its digest and diffID, and makes the tree ID again from the layers.
If something is wrong, the command prints what and where, and exits with 3.

The verification is a job of the hub, and goes on if the command is interrupted. "lighter
jobs" shows the job and its result; "lighter jobs cancel" ends it.`,
		Example: "  lighter verify physics/root:6.32",
		Args:    command.Exactly("NAME"),
	}
	return hubQuery(cmd, func(ctx context.Context, hub *client.Client, args []string) (verification, error) {
		last, err := watch(func(show func(wire.Progress)) (wire.Progress, error) {
			return hub.Verify(ctx, args[0], show)
		})
		return verification{args[0], append([]string{}, last.Problems...)}, err
	}, func(v verification) error {
		for _, problem := range v.Problems {
			fmt.Println(problem)
		}
		if len(v.Problems) == 0 {
			fmt.Printf("%s is intact\n", v.Name)
		}
		return nil
	})
}

// verification is the result of reading an image back.
type verification struct {
	Name     string   `json:"name"`
	Problems []string `json:"problems"`
}

// Err returns an error if the image is damaged.
func (v verification) Err() error {
	if len(v.Problems) == 0 {
		return nil
	}
	return fmt.Errorf("%w: lighter fsck --deep --repair makes lost objects again", errDamaged)
}
