// Package command is what all programs of this repository share on the command line: it counts
// arguments, prints errors, and ends a program with exit code 2 if its arguments are wrong.
// Commands and errors of a single program are not in it.
package command

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
)

// Exit codes that all programs share. Scripts may rely on them.
const (
	ExitFailed = 1 // the operation failed
	ExitUsage  = 2 // the arguments or the configuration are wrong
)

// PrintTimeout bounds how long an ending program waits for a reader of its error and its log.
const PrintTimeout = 2 * time.Second

// ErrReported says that a program fails and has already printed why.
var ErrReported = errors.New("the failure was reported")

// usageError marks wrong arguments.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usage marks err as a fault of the arguments: the program ends with ExitUsage.
func Usage(err error) error { return usageError{err} }

// codedError is an error with an exit code of its own.
type codedError struct {
	error
	code int
}

func (e codedError) Unwrap() error { return e.error }

// Code makes the program end with an exit code if err is its result, also if the arguments were
// wrong.
func Code(code int, err error) error { return codedError{err, code} }

// Main runs root with the program's arguments, ends it on SIGINT and SIGTERM, and exits. exitCode
// returns the exit code of an error that is not about usage.
func Main(root *cobra.Command, exitCode func(error) int) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(Run(ctx, root, os.Args[1:], exitCode))
}

// Run runs root with args, prints why it failed, if it did, and returns the exit code.
func Run(ctx context.Context, root *cobra.Command, args []string, exitCode func(error) int) int {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.CompletionOptions = cobra.CompletionOptions{HiddenDefaultCmd: true}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return Usage(fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath()))
	})
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if !errors.Is(err, ErrReported) {
		printError(root.Name(), err)
	}
	if coded, ok := errors.AsType[codedError](err); ok {
		return coded.code
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return ExitUsage
	}
	return exitCode(err)
}

// printError prints why the program fails, as one line. It does not wait for a reader of standard
// error that has stopped: a daemon has to end, so that another can start.
func printError(program string, err error) {
	out, printed := os.Stderr, make(chan struct{})
	go func() {
		defer close(printed)
		fmt.Fprintln(out, program+": "+OneLine(err))
	}()
	select {
	case <-printed:
	case <-time.After(PrintTimeout):
	}
}

// OneLine returns the error's text as one line.
func OneLine(err error) string {
	var line string
	for part := range strings.Lines(err.Error()) {
		part = strings.TrimSpace(part)
		switch {
		case line == "":
		case strings.HasSuffix(line, ":"):
			line += " "
		default:
			line += "; "
		}
		line += part
	}
	return line
}

// Group is the value of Args for a command that takes no arguments, only subcommands.
func Group(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usage(fmt.Errorf("there is no command %q (see %s --help)", args[0], cmd.CommandPath()))
	}
	return nil
}

// Exactly requires one argument for each name. Its error names a missing argument.
func Exactly(names ...string) cobra.PositionalArgs { return AtLeast(len(names), names...) }

// AtLeast requires as many arguments as least says, and accepts one argument for each name.
func AtLeast(least int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return Usage(fmt.Errorf("%s is missing (see %s --help)", names[len(args)], cmd.CommandPath()))
		case len(args) > len(names):
			return Usage(fmt.Errorf("%q is one argument too many (see %s --help)", args[len(names)], cmd.CommandPath()))
		}
		return nil
	}
}
