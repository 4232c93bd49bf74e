package conversion

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"

	"lighter/format/soci"
	"lighter/format/stargz"
	"lighter/format/trace"
)

const (
	defaultGzip = 6
	defaultZstd = 3
	maxGzip     = 9
	maxZstd     = 22

	maxPath  = 4096    // bytes, as in the kernel
	maxPaths = 1 << 20 // of one list
)

// Format is what an image is converted to. Its value is the format's name.
type Format string

// The formats.
const (
	EStargz     Format = "estargz"     // layers with tables of contents, in gzip
	ZstdChunked Format = "zstdchunked" // layers with tables of contents, in zstd, as stargz-snapshotter writes them
	SOCI        Format = "soci"        // the same layers, and a SOCI index of version 2
)

// stargz returns the format of new layers.
func (f Format) stargz() stargz.Format {
	if f == EStargz {
		return stargz.EStargz
	}
	return stargz.StargzZstd
}

// Check returns an error if there is no such format, or if the options contradict each other.
func (o Options) Check() error {
	most := maxGzip
	switch o.Format {
	case EStargz:
	case ZstdChunked:
		most = maxZstd
	case SOCI:
		if o.Level != 0 {
			return fmt.Errorf("level %d of %s: its layers stay as they are", o.Level, o.Format)
		}
		return nil
	default:
		return fmt.Errorf("%q is no format: want %s, %s or %s", o.Format, EStargz, ZstdChunked, SOCI)
	}
	if level := o.level(); level < 1 || level > most {
		return fmt.Errorf("level %d of %s: want 1 to %d", level, o.Format, most)
	}
	return nil
}

func (o Options) level() int {
	switch {
	case o.Level != 0:
		return o.Level
	case o.Format == EStargz:
		return defaultGzip
	}
	return defaultZstd
}

// ReadPaths reads a list of whole files from a file: a path in each line, relative to the image's
// root or absolute. Empty lines are ignored.
func ReadPaths(file string) (files []soci.Part, err error) {
	f, err := os.Open(file)
	if err == nil {
		defer f.Close()
		files, err = readPaths(f)
	}
	if err != nil {
		return nil, fmt.Errorf("read the paths in %s: %w", file, err)
	}
	return files, nil
}

func readPaths(r io.Reader) (files []soci.Part, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxPath)
	for lines.Scan() {
		if len(files) == maxPaths {
			return nil, fmt.Errorf("more than %d paths", maxPaths)
		}
		if lines.Text() != "" {
			files = append(files, soci.Part{Path: lines.Text()})
		}
	}
	return files, lines.Err()
}

// PartsOf returns what recorded starts have read, those of the most starts first.
func PartsOf(recordings []trace.Recording) (parts []soci.Part) {
	sorted := slices.SortedStableFunc(slices.Values(recordings),
		func(a, b trace.Recording) int { return cmp.Compare(b.Starts, a.Starts) })
	for _, r := range sorted {
		for _, e := range r.Entries {
			parts = append(parts, soci.Part{Path: e.Path, Offset: e.Offset, Length: e.Length})
		}
	}
	return parts
}

// files returns the paths of the prioritized parts.
func (o Options) files() (paths []string) {
	for _, p := range o.Prioritized {
		paths = append(paths, p.Path)
	}
	return paths
}
