package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/node"
	"lighter/node/doctor"
)

func doctorCommand() *cobra.Command {
	config := node.DefaultConfig()
	var file string
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Find what keeps the node on this machine from working, and how to repair it",
		Long: `Find what keeps the node on this machine from working, or its images from being lazy:
in the kernel, the node's directory, its disk, its hub, containerd, Docker and the node.
It works whether or not a node runs. It changes nothing: its trial mounts are invisible
to others. Some checks need root, and are reported as unchecked without it.

Give it the node's flags or configuration file. The settings of a running node take
precedence.

Exit codes: 0 no problem (there may be warnings), 3 a problem.`,
		Example: `  sudo lighter doctor
  lighter doctor --config /etc/lighter/node.toml
  lighter doctor --json | jq '.[] | select(.level == "problem")'`,
		Args: command.Exactly(),
	}
	nodeFlags(cmd, &config, &file)
	load := func() (*node.Config, error) { return &config, loadConfig(cmd, file, &config) }
	return query(cmd, load, func(ctx context.Context, config *node.Config, _ []string) (findings, error) {
		return doctor.Run(ctx, *config), nil
	}, func(found findings) error {
		printFindings(found)
		return nil
	})
}

// findings are the findings of the doctor.
type findings []doctor.Finding

// Err returns an error if a finding is a problem.
func (found findings) Err() error {
	if slices.ContainsFunc(found, func(f doctor.Finding) bool { return f.Level == doctor.Problem }) {
		return errUnhealthy
	}
	return nil
}

// errUnhealthy says that doctor found a problem, which was printed.
var errUnhealthy = errors.New("there are problems")

func printFindings(findings []doctor.Finding) {
	area := ""
	for _, f := range findings {
		if f.Area != area {
			area = f.Area
			fmt.Println(area)
		}
		fmt.Printf("  %-9s  %s\n", f.Level, strings.ReplaceAll(f.What, "\n", "; "))
		if f.Repair != "" {
			fmt.Printf("             repair: %s\n", strings.ReplaceAll(f.Repair, "\n", "\n"+strings.Repeat(" ", 21)))
		}
	}
}
