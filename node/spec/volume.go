package spec

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Volume is a file or a directory of the machine that a container sees.
type Volume struct {
	Source   string // absolute path on the machine
	Target   string // absolute path in the container
	ReadOnly bool
}

// ParseVolume parses HOST:CONTAINER[:ro|rw]. HOST has to exist, and has a slash or is a dot:
// there are no named volumes.
func ParseVolume(text string) (Volume, error) {
	v, err := parseVolume(text)
	if err != nil {
		return v, fmt.Errorf("volume %q: %w; want HOST:CONTAINER[:ro], where HOST is a path and CONTAINER an "+
			"absolute path", text, err)
	}
	return v, nil
}

func parseVolume(text string) (v Volume, err error) {
	parts := strings.Split(text, ":")
	if len(parts) == 3 {
		switch parts[2] {
		case "ro":
			v.ReadOnly = true
		case "rw":
		default:
			return v, fmt.Errorf("option %q is neither ro nor rw", parts[2])
		}
		parts = parts[:2]
	}
	if len(parts) != 2 {
		return v, errors.New("it does not have two paths")
	}
	if !strings.Contains(parts[0], "/") && !strings.HasPrefix(parts[0], ".") {
		return v, fmt.Errorf("%q is not a path, and there are no named volumes", parts[0])
	}
	if v.Source, err = filepath.Abs(parts[0]); err != nil {
		return v, err
	}
	if _, err := os.Stat(v.Source); err != nil {
		return v, err
	}
	v.Target = path.Clean(parts[1])
	if !path.IsAbs(v.Target) || v.Target == "/" {
		return v, fmt.Errorf("%q is not an absolute path below the root", parts[1])
	}
	return v, nil
}

func (v Volume) mount() specs.Mount {
	mode := "rw"
	if v.ReadOnly {
		mode = "ro"
	}
	return specs.Mount{Destination: v.Target, Type: "bind", Source: v.Source,
		Options: []string{"rbind", "rprivate", mode}}
}
