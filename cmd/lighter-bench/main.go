// Command lighter-bench measures Lighter and other snapshotters. It is separate from the product,
// because it contains code that builds networks, registries and machines for measurements.
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
	root.PersistentFlags().String("lighter", "",
		"the lighter `FILE` to measure (default: in the directory of this program)")
	root.AddCommand(figuresCommand(), demoCommand(), manyCommand(), hubsCommand(), nodesCommand(), configCommand())
	return root
}

// measured returns the path of the lighter binary to measure.
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

// configCommand prints the default configuration.
func configCommand() *cobra.Command {
	return &cobra.Command{
		Use: "config", Short: "Print the default configuration, as a template",
		Example: "  lighter-bench config > bench.toml",
		Args:    command.Exactly(),
		RunE: func(*cobra.Command, []string) error {
			_, err := os.Stdout.WriteString(bench.Default)
			return err
		},
	}
}
