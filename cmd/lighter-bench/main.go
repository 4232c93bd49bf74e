// Command lighter-bench measures Lighter, beside other snapshotters. It is apart from the product:
// it contains what builds networks, registries and machines to measure on.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"lighter/bench"
	"lighter/cmd/command"
)

func main() { command.Main(rootCommand(), func(error) int { return command.ExitFailed }) }

func rootCommand() *cobra.Command {
	root := startsCommand()
	root.PersistentFlags().String("lighter", "", "the lighter `FILE` that is measured (default: the one beside this program)")
	root.AddCommand(figuresCommand(), demoCommand(), manyCommand(), nodesCommand(), configCommand())
	return root
}

// measured returns the program that is measured.
func measured(cmd *cobra.Command) (string, error) {
	path, err := cmd.Flags().GetString("lighter")
	if err != nil {
		return "", err
	}
	if path == "" {
		own, err := os.Executable()
		if err != nil {
			return "", err
		}
		path = filepath.Join(filepath.Dir(own), "lighter")
	}
	if path, err = filepath.Abs(path); err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "", command.Usage(fmt.Errorf("find the lighter to measure (see --lighter): %w", err))
	}
	return path, nil
}

// configCommand prints the default configuration, which has no flags.
func configCommand() *cobra.Command {
	return &cobra.Command{
		Use: "config", Short: "Print the default configuration, as a file to start from",
		Example: "  lighter-bench config > bench.toml",
		Args:    command.Exactly(),
		RunE: func(*cobra.Command, []string) error {
			_, err := os.Stdout.WriteString(bench.Default)
			return err
		},
	}
}
