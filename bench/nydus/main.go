// Command nydus is the nydus snapshotter for the benchmark: a peer that is compared with Lighter.
// It runs the peer's own programs, containerd-nydus-grpc, nydusd and nydus-image, which are in the
// directory of this command. They are built from Go's module proxy and crates.io. The newest nydusd
// on crates.io is 2.2.0. Results name this version, because the project has newer versions.
//
//   - nydus snapshotter writes the peer's configuration into its root and executes
//     containerd-nydus-grpc in its place. The configuration is the one that the
//     peer ships for FUSE, which prefetches the whole image in the background;
//     --no-prefetch disables that. The configuration disables these parts of the
//     peer: its own cgroups, the listeners for metrics and for control of its
//     daemons, and recovery of daemons. When the peer ends, it unmounts
//     everything. nydusd is started so that it does not change the limit of open
//     files: it would not start if it could not raise the limit.
//   - nydus convert makes a nydus image (RAFS 6) from another image, by the peer's
//     own functions, with its default compression and chunks.
//
// It is a separate module, so that none of this becomes a dependency of Lighter.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

const usage = `usage: nydus snapshotter --root DIR --address SOCKET [--no-prefetch]
       nydus convert [--plain-http] SOURCE DESTINATION

The snapshotter asks registries without TLS.

Examples:
  nydus snapshotter --root /var/lib/nydus --address /run/nydus.sock
  nydus convert --plain-http registry:5000/python:latest registry:5000/python:nydus
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(usage)
	case errors.As(err, new(usageError)):
		fmt.Fprintf(os.Stderr, "nydus: %v\n%s", err, usage)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "nydus:", err)
		os.Exit(1)
	}
}

// A usageError reports an invalid command line.
type usageError struct{ error }

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return usageError{errors.New("a command is missing")}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard) // main prints errors
	switch args[0] {
	case "snapshotter":
		o := snapshotterOptions{programs: filepath.Dir(self)}
		flags.StringVar(&o.root, "root", "", "")
		flags.StringVar(&o.address, "address", "", "")
		flags.BoolVar(&o.noPrefetch, "no-prefetch", false, "")
		if err := parse(flags, args[1:], 0); err != nil {
			return err
		}
		if o.root == "" || o.address == "" {
			return usageError{errors.New("--root and --address are needed")}
		}
		return become(o)
	case "convert":
		plainHTTP := flags.Bool("plain-http", false, "")
		if err := parse(flags, args[1:], 2); err != nil {
			return err
		}
		return convert(ctx, filepath.Join(filepath.Dir(self), "nydus-image"), flags.Arg(0), flags.Arg(1), *plainHTTP)
	case "-h", "--help", "help":
		return flag.ErrHelp
	}
	return usageError{fmt.Errorf("unknown command %q", args[0])}
}

// parse parses flags that are followed by n arguments.
func parse(flags *flag.FlagSet, args []string, n int) error {
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return usageError{err}
	}
	if flags.NArg() != n {
		return usageError{fmt.Errorf("nydus %s takes %d arguments after its flags, got %d", flags.Name(), n,
			flags.NArg())}
	}
	return nil
}
