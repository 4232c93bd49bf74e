// Command lighter is the hub, the node and their tools in one binary. Each
// subcommand has a file: its flags, its help, and one call.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"lighter/bench"
	"lighter/node"
)

// Exit codes. Scripts may rely on them.
const (
	exitFailed   = 1 // it did not work
	exitUsage    = 2 // the arguments are wrong
	exitProblems = 3 // `verify` or `doctor` found something
	exitNoDaemon = 4 // no node runs there
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

func run(ctx context.Context, args []string) int {
	root := rootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if !errors.Is(err, bench.ErrReported) {
		printError(err)
	}
	return exitCode(err)
}

// printError prints why the command fails. A daemon that failed has to end, for another to
// start, also if nobody reads its standard error.
func printError(err error) {
	out, printed := os.Stderr, make(chan struct{})
	go func() {
		defer close(printed)
		fmt.Fprintln(out, "lighter: "+oneLine(err))
	}()
	select {
	case <-printed:
	case <-time.After(logFlush):
	}
}

// usageError marks arguments that cannot be understood.
type usageError struct{ error }

// errProblems says that a verification found something, which was printed.
var errProblems = errors.New("the image is damaged")

// exitCode is the one place where errors become exit codes.
func exitCode(err error) int {
	var usage usageError
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, errProblems), errors.Is(err, errSick):
		return exitProblems
	case errors.Is(err, node.ErrNoDaemon):
		return exitNoDaemon
	}
	return exitFailed
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "lighter",
		Short: "Start containers from images of which only the touched bytes are fetched",
		Long: `Lighter starts a container in about a second however big its image is.

A hub takes images in, as they are built today; a node mounts them for
containerd and fetches the bytes that a container touches.`,
		Example: `  lighter hub &
  lighter node &
  lighter add docker://registry.example.org/tools/shell:1
  ctr images pull --snapshotter lighter registry.example.org/tools/shell:1`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },

		SilenceUsage: true, SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())}
	})
	root.AddCommand(hubCommand(), nodeCommand(), addCommand(), imagesCommand(), inspectCommand(), keeperCommand(), probeCommand(), trialCommand(),
		mountCommand(), unmountCommand(), releaseCommand(), rmCommand(), verifyCommand(), mirrorCommand(), statusCommand(), doctorCommand(), cacheCommand(), configCommand(), benchCommand(), traceCommand())
	return root
}

// noSuchCommand is for commands that only have commands below them.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("there is no command %q (see %s --help)", args[0], cmd.CommandPath())}
	}
	return nil
}

// exactArgs wants as many arguments as names, and names what is missing.
func exactArgs(names ...string) cobra.PositionalArgs { return rangeArgs(len(names), names...) }

// rangeArgs wants at least least of the named arguments.
func rangeArgs(least int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usageError{fmt.Errorf("%s is missing (see %s --help)", names[len(args)], cmd.CommandPath())}
		case len(args) > len(names):
			return usageError{fmt.Errorf("%q is one argument too many (see %s --help)", args[len(names)], cmd.CommandPath())}
		}
		return nil
	}
}
