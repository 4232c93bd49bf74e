// Command soci is the SOCI snapshotter for the benchmark: a peer that is compared with Lighter. The
// programs of the peer, its daemon and its converter, cannot be dependencies of another module. So
// this command combines the packages that these programs use. It makes the peer neither faster nor
// slower:
//
//   - soci snapshotter serves containerd as a proxy plugin on a socket. Its
//     settings are those of the peer's daemon with an empty configuration, and it
//     takes the same configuration file. It has no credentials. Unlike the peer's
//     daemon, it unmounts everything on SIGTERM as well as on SIGINT.
//   - soci convert adds a SOCI index, of version 2, to an image, with the sizes
//     that the peer's converter has by default: spans of 4 MiB, and no index for
//     layers of less than 10 MiB.
//   - soci create pushes a SOCI index, of version 1, beside an image, which stays
//     the same: by the referrers API, or by the fallback tag if the registry has
//     none.
//   - soci ztoc writes the index of one layer to a file, for tests that compare it
//     with Lighter's.
//
// It is a separate module, so that none of this becomes a dependency of Lighter. The peer needs
// cgo, and zlib as a static library.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/containerd/log"
)

const usage = `usage: soci snapshotter --root DIR --address SOCKET --containerd SOCKET
                        [--config FILE] [--plain-http HOST] [--log-level LEVEL]
       soci convert [--plain-http] [--min-layer-size BYTES] SOURCE DESTINATION
       soci create [--plain-http] [--min-layer-size BYTES] IMAGE
       soci ztoc [--compression gzip|uncompressed] [--span-size BYTES] BLOB ZTOC

Examples:
  soci snapshotter --root /var/lib/soci --address /run/soci.sock \
    --containerd /run/containerd/containerd.sock --plain-http registry:5000
  soci convert --plain-http registry:5000/python:latest registry:5000/python:soci
  soci create --plain-http registry:5000/python:latest
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(usage)
	case errors.As(err, new(usageError)):
		fmt.Fprintf(os.Stderr, "soci: %v\n%s", err, usage)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "soci:", err)
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
		return runSnapshotter(ctx, args[1:])
	case "convert":
		return runIndex(args, 2, func(i *indexer, names []string) error { return i.convert(ctx, names[0], names[1]) })
	case "create":
		return runIndex(args, 1, func(i *indexer, names []string) error { return i.create(ctx, names[0]) })
	case "ztoc":
		return runZTOC(args[1:])
	case "-h", "--help", "help":
		return flag.ErrHelp
	}
	return usageError{fmt.Errorf("unknown command %q", args[0])}
}

func runSnapshotter(ctx context.Context, args []string) error {
	var o snapshotterOptions
	flags := newFlags("snapshotter")
	flags.StringVar(&o.root, "root", "", "")
	flags.StringVar(&o.address, "address", "", "")
	flags.StringVar(&o.containerd, "containerd", "", "")
	flags.StringVar(&o.config, "config", "", "")
	flags.StringVar(&o.plainHTTP, "plain-http", "", "")
	level := flags.String("log-level", "info", "")
	if err := parse(flags, args, 0); err != nil {
		return err
	}
	if o.root == "" || o.address == "" || o.containerd == "" {
		return usageError{errors.New("--root, --address and --containerd are needed")}
	}
	if err := log.SetLevel(*level); err != nil {
		return usageError{err}
	}
	return serve(ctx, o)
}

// runIndex runs a command that makes an index. It takes n names of images.
func runIndex(args []string, n int, command func(i *indexer, names []string) error) error {
	flags := newFlags(args[0])
	plainHTTP := flags.Bool("plain-http", false, "")
	minLayerSize := flags.Int64("min-layer-size", 10<<20, "")
	if err := parse(flags, args[1:], n); err != nil {
		return err
	}
	// Otherwise containerd's packages log that files are stored without fs-verity.
	if err := log.SetLevel("error"); err != nil {
		return err
	}
	i, err := newIndexer(*plainHTTP, *minLayerSize)
	if err != nil {
		return err
	}
	return errors.Join(command(i, flags.Args()), i.close())
}

func runZTOC(args []string) error {
	flags := newFlags("ztoc")
	compression := flags.String("compression", "gzip", "")
	spanSize := flags.Int64("span-size", 4<<20, "")
	if err := parse(flags, args, 2); err != nil {
		return err
	}
	return writeZTOC(flags.Arg(0), flags.Arg(1), *compression, *spanSize)
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
		return usageError{fmt.Errorf("soci %s takes %d arguments after its flags, got %d", flags.Name(), n,
			flags.NArg())}
	}
	return nil
}
