// Command rebuild measures whether the layers of OCI layouts could be made again bit by bit, from
// what a hub stores of them anyway. It decompresses each layer, compresses it with one compressor
// after the other, and stops a compressor at its first byte that differs from the blob. It also
// measures what a hub would have to store in addition to chunks: the bytes of the tar stream that
// are not contents of files.
//
// docs/decisions/blobs.md has the results. It needs pigz, gzip, zstd and python3, whose compressors
// it tries, too. It is a separate module, so that none of its compressors becomes a dependency of
// Lighter.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
)

const usage = `usage: rebuild [--json] LAYOUT...

Each LAYOUT is the directory of an OCI layout. A layer that several of them have is measured once.

Examples:
  rebuild work/images/base work/images/python
  rebuild --json work/images/* > rebuild.json
`

func main() {
	err := run(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(usage)
	case errors.As(err, new(usageError)):
		fmt.Fprintf(os.Stderr, "rebuild: %v\n%s", err, usage)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "rebuild:", err)
		os.Exit(1)
	}
}

// A usageError reports an invalid command line.
type usageError struct{ error }

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("rebuild", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // main prints errors
	asJSON := flags.Bool("json", false, "")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return usageError{err}
	}
	if flags.NArg() == 0 {
		return usageError{errors.New("a layout is missing")}
	}
	blobs, err := findLayers(flags.Args())
	if err != nil {
		return err
	}
	var reports []report
	for _, b := range blobs {
		fmt.Fprintf(os.Stderr, "%s: %s, %d bytes\n", b.layout, b.digest, b.size)
		r, err := b.measure(compressors)
		if err != nil {
			return fmt.Errorf("measure layer %s of %s: %w", b.digest, b.layout, err)
		}
		reports = append(reports, r)
	}
	if *asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(reports)
	}
	return printTable(out, reports)
}

func printTable(out io.Writer, reports []report) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "layout\tlayer\tblob\ttar\tskeleton\ttar-split\theader\tcompressor\tsame\tdecompress s\tcompress s")
	for _, r := range reports {
		fmt.Fprintf(w, "%s\t%.12s\t%d\t%d\t%d\t%d\t%s\t%s\t%d\t%.2f\t%.2f\n", r.Layout, r.Digest[len("sha256:"):],
			r.Bytes, r.Tar, r.Skeleton, r.TarSplit, r.Header, r.Compressor, r.Same, r.Decompress, r.Compress)
	}
	return w.Flush()
}
