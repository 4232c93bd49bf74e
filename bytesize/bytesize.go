// Package bytesize parses and prints numbers of bytes as users write them in configurations and
// flags: 20GiB, 500MB or 1073741824.
//
// A printed size is the same number when it is read again.
package bytesize

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// Size is a number of bytes. In a configuration it is also a plain number.
type Size int64

// largest bounds sizes that are read, so that the sum of two does not overflow.
const largest = 1 << 62

// units are the units that String uses, the largest first.
var units = []struct {
	name  string
	bytes Size
}{
	{"EiB", 1 << 60}, {"EB", 1e18}, {"PiB", 1 << 50}, {"PB", 1e15}, {"TiB", 1 << 40}, {"TB", 1e12},
	{"GiB", 1 << 30}, {"GB", 1e9}, {"MiB", 1 << 20}, {"MB", 1e6}, {"KiB", 1 << 10}, {"kB", 1e3},
}

// String returns the exact size, in the largest unit of which it is a multiple.
func (s Size) String() string {
	for _, unit := range units {
		if s != 0 && s%unit.bytes == 0 {
			return strconv.FormatInt(int64(s/unit.bytes), 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// Rounded returns the size in a binary unit, with one decimal below 10 and none from 10 on. A
// negative size is printed as 0B.
func (s Size) Rounded() string {
	return strings.ReplaceAll(humanize.IBytes(uint64(max(s, 0))), " ", "")
}

// MarshalText implements encoding.TextMarshaler.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses a number with a unit, or a number of bytes.
func (s *Size) UnmarshalText(b []byte) error {
	n, err := humanize.ParseBytes(string(b))
	if err != nil || n >= largest {
		return fmt.Errorf("%q is not a size: write 20GiB or 500MB, or a number of bytes", b)
	}
	*s = Size(n)
	return nil
}
