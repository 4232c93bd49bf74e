// Command stargz is the stargz snapshotter for the benchmark: a peer that is compared with Lighter.
// The peer's daemon and converter are in a module that cannot be a dependency of another module. So
// this command combines the library packages of the daemon and the converter, which are in a module
// of their own. It makes the peer neither faster nor slower:
//
//   - stargz snapshotter serves containerd as a proxy plugin on a socket. Its
//     settings are those of the peer's daemon with an empty configuration, and it
//     takes the same configuration file. This process itself serves FUSE, as the
//     peer's daemon does by default. It has no credentials. Unlike the peer's daemon, it
//     unmounts everything on SIGTERM as well as on SIGINT.
//   - stargz convert makes an eStargz or zstd:chunked image from another image, by
//     the peer's own functions, at the default levels of its converter: gzip 9,
//     zstd 3. With traces, the files that the traces name are at the beginning of
//     their layers, followed by a landmark. The snapshotter prefetches these files
//     before a container starts, as after the peer's `ctr-remote image optimize`.
//     Without traces, a landmark disables prefetching, as after the peer's
//     `ctr-remote image convert`.
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
	"strings"
	"syscall"

	"github.com/containerd/log"
)

const usage = `usage: stargz snapshotter --root DIR --address SOCKET
                          [--config FILE] [--plain-http HOST]... [--log-level LEVEL]
       stargz convert --kind estargz|zstdchunked [--trace FILE]... [--store DIR] [--plain-http] SOURCE DESTINATION

Examples:
  stargz snapshotter --root /var/lib/stargz --address /run/stargz.sock --plain-http registry:5000
  stargz convert --kind estargz --trace hello.trace --plain-http \
    registry:5000/python:latest registry:5000/python:estargz
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(usage)
	case errors.As(err, new(usageError)):
		fmt.Fprintf(os.Stderr, "stargz: %v\n%s", err, usage)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "stargz:", err)
		os.Exit(1)
	}
}

// A usageError reports an invalid command line.
type usageError struct{ error }

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return usageError{errors.New("a command is missing")}
	}
	switch args[0] {
	case "snapshotter":
		o, err := snapshotterFlags(args[1:])
		if err != nil {
			return err
		}
		if err := log.SetLevel(o.logLevel); err != nil {
			return usageError{err}
		}
		return serve(ctx, o)
	case "convert":
		o, err := convertFlags(args[1:])
		if err != nil {
			return err
		}
		// Otherwise containerd's packages log that files are stored without fs-verity.
		if err := log.SetLevel("error"); err != nil {
			return err
		}
		return convert(ctx, o)
	case "-h", "--help", "help":
		return flag.ErrHelp
	}
	return usageError{fmt.Errorf("unknown command %q", args[0])}
}

func snapshotterFlags(args []string) (o snapshotterOptions, err error) {
	flags := newFlags("snapshotter")
	flags.StringVar(&o.root, "root", "", "")
	flags.StringVar(&o.address, "address", "", "")
	flags.StringVar(&o.config, "config", "", "")
	flags.StringVar(&o.logLevel, "log-level", "info", "")
	flags.Var((*list)(&o.plainHTTP), "plain-http", "")
	if err := parse(flags, args, 0); err != nil {
		return o, err
	}
	if o.root == "" || o.address == "" {
		return o, usageError{errors.New("--root and --address are needed")}
	}
	return o, nil
}

func convertFlags(args []string) (o convertOptions, err error) {
	flags := newFlags("convert")
	flags.StringVar(&o.kind, "kind", "", "")
	flags.StringVar(&o.store, "store", "", "")
	flags.BoolVar(&o.plainHTTP, "plain-http", false, "")
	flags.Var((*list)(&o.traces), "trace", "")
	if err := parse(flags, args, 2); err != nil {
		return o, err
	}
	o.source, o.destination = flags.Arg(0), flags.Arg(1)
	if o.kind != estargzKind && o.kind != zstdchunkedKind {
		return o, usageError{fmt.Errorf("--kind is %s or %s", estargzKind, zstdchunkedKind)}
	}
	return o, nil
}

func newFlags(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // main prints errors
	return flags
}

// parse parses flags that are followed by n arguments.
func parse(flags *flag.FlagSet, args []string, n int) error {
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return usageError{err}
	}
	if flags.NArg() != n {
		return usageError{fmt.Errorf("stargz %s takes %d arguments after its flags, got %d", flags.Name(), n,
			flags.NArg())}
	}
	return nil
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, " ") }

func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}
