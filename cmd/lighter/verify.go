package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
)

func verifyCommand() *cobra.Command {
	var flags hubFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify [flags] NAME",
		Short: "Read every byte of an image back on the hub and check it",
		Long: `Read every byte of an image back on the hub. The hub checks each chunk against its ID and
each layer against its digest and diffID, and makes the tree ID again from the layers.
If something is wrong, the command prints what and where, and exits with 3.`,
		Example: "  lighter verify physics/root:6.32",
		Args:    command.Exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := flags.client()
			if err != nil {
				return err
			}
			bars := newProgress()
			last, err := client.Verify(cmd.Context(), args[0], bars.show)
			bars.end()
			if err != nil {
				return err
			}
			if asJSON {
				if err := printJSON(os.Stdout, map[string]any{"name": args[0], "problems": append([]string{}, last.Problems...)}); err != nil {
					return err
				}
			} else {
				for _, problem := range last.Problems {
					fmt.Println(problem)
				}
			}
			if len(last.Problems) > 0 {
				return fmt.Errorf("%w: %d problems", errProblems, len(last.Problems))
			}
			if !asJSON {
				fmt.Printf("%s is intact\n", args[0])
			}
			return nil
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
