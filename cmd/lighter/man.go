//go:build man

package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"lighter/cmd/command"
)

// main writes a manual page for each command into a directory. It is built instead of the product's
// main function (program.go), so that the product has no code for that:
//
//	go run -tags man ./cmd/lighter DIR
func main() {
	root := &cobra.Command{
		Use:  "man DIR",
		Args: command.Exactly("DIR"),
		RunE: func(_ *cobra.Command, args []string) error { return writeManual(args[0]) },
	}
	command.Main(root, func(error) int { return command.ExitFailed })
}

// writeManual writes the pages. Their date is SOURCE_DATE_EPOCH, if that is set.
func writeManual(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the manual: %w", err)
	}
	root := rootCommand()
	prepare(root)
	header := doc.GenManHeader{Section: "1", Source: "Lighter", Manual: "Lighter"}
	if err := doc.GenManTree(root, &header, dir); err != nil {
		return fmt.Errorf("write the manual: %w", err)
	}
	return nil
}

// prepare changes the help texts of a command and its subcommands to Markdown. The library reads
// them as that: lines that are indented less than four spaces would become one paragraph.
func prepare(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true
	var long strings.Builder
	for line := range strings.Lines(cmd.Long) {
		if strings.HasPrefix(line, "  ") {
			line = "    " + line
		}
		long.WriteString(line)
	}
	cmd.Long = long.String()
	for _, sub := range cmd.Commands() {
		prepare(sub)
	}
}
