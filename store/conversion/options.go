package conversion

import (
	"bufio"
	"fmt"
	"io"
	"os"

	"lighter/format/stargz"
)

const (
	maxPath  = 4096    // bytes, as in the kernel
	maxPaths = 1 << 20 // of one list
)

// ParseFormat returns the format with a name: estargz or zstdchunked.
func ParseFormat(name string) (stargz.Format, error) {
	switch name {
	case "estargz":
		return stargz.EStargz, nil
	case "zstdchunked":
		return stargz.StargzZstd, nil
	}
	return 0, fmt.Errorf("%q is no format of layers: want estargz or zstdchunked", name)
}

// ReadPaths reads a list of paths from a file: one in each line, relative to the image's root or
// absolute. Empty lines are ignored.
func ReadPaths(file string) (paths []string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if paths, err = readPaths(f); err != nil {
		return nil, fmt.Errorf("read the paths in %s: %w", file, err)
	}
	return paths, nil
}

func readPaths(r io.Reader) (paths []string, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxPath)
	for lines.Scan() {
		if len(paths) == maxPaths {
			return nil, fmt.Errorf("more than %d paths", maxPaths)
		}
		if lines.Text() != "" {
			paths = append(paths, lines.Text())
		}
	}
	return paths, lines.Err()
}
