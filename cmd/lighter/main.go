// Command lighter is the hub, the node and their tools in one binary. A subcommand is its flags,
// its help, and one call; nearly each has a file of its own.
package main

import (
	"errors"
	"net/http"

	"github.com/spf13/cobra"

	"lighter/cmd/command"
	"lighter/node/control"
	"lighter/wire/client"
)

// Exit codes in addition to those of package command. Scripts may rely on them.
const (
	exitProblems = 3 // `verify` or `doctor` found a problem, `fsck` left one, or lines of a list failed
	exitNoDaemon = 4 // no node runs with that root
)

// errDamaged says that a verification found problems, which were printed.
var errDamaged = errors.New("the image is damaged")

// errProblems says that a comparison of the hub's stores left problems, which were printed.
var errProblems = errors.New("the hub's stores have problems that are not repaired")

// exitCode returns the exit code of an error that package command does not know. If a hub answers
// that a request is invalid, because of a bad name, for example, the arguments were wrong.
func exitCode(err error) int {
	refused := (*client.Error)(nil)
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusBadRequest:
		return command.ExitUsage
	case errors.Is(err, errDamaged), errors.Is(err, errProblems), errors.Is(err, errUnhealthy),
		errors.Is(err, errLines):
		return exitProblems
	case errors.Is(err, control.ErrNoDaemon):
		return exitNoDaemon
	}
	return command.ExitFailed
}

// group returns a command that has only subcommands.
func group(name, short, long, example string) *cobra.Command {
	return &cobra.Command{Use: name, Short: short, Long: long, Example: example, Args: command.Group,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
}

func rootCommand() *cobra.Command {
	root := group("lighter", "Start containers from images of which only the needed bytes are fetched",
		`Lighter starts a container in about a second however big its image is.

A hub ingests images as they are built today. A node mounts them for containerd, and fetches
only the bytes that a container reads.`,
		`  lighter hub &
  lighter node &
  lighter add docker://registry.example.org/tools/shell:1
  ctr images pull --snapshotter lighter registry.example.org/tools/shell:1`)
	root.AddCommand(hubCommand(), addCommand(), imagesCommand(), jobsCommand(), eventsCommand(), gcCommand(),
		holdersCommand(), retentionCommand(), wishlistCommand(), syncCommand(), inspectCommand(), rmCommand(),
		verifyCommand(), fsckCommand(), backupCommand(), restoreCommand(),
		mirrorCommand(), exportCommand(), attachCommand(), traceCommand(), nodeCommand(), statusCommand(),
		doctorCommand(), cacheCommand(), preheatCommand(),
		mountCommand(), unmountCommand(), runCommand(), bundleCommand(), unbundleCommand(),
		releaseCommand(), keeperCommand(), probeCommand(), configCommand(), installCommand(), uninstallCommand(),
		completionCommand(), versionCommand())
	return root
}
