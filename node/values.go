package node

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"lighter/store/disk"
)

// Delay is a time that people write as 90s or 5m.
type Delay time.Duration

// String writes the delay as Go does.
func (d Delay) String() string { return time.Duration(d).String() }

// MarshalText writes what String does.
func (d Delay) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what Go reads: a number with a unit.
func (d *Delay) UnmarshalText(b []byte) error {
	n, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("%q is not a delay: write 90s or 5m", b)
	}
	*d = Delay(n)
	return nil
}

// Set implements the flag packages' Value.
func (d *Delay) Set(text string) error { return d.UnmarshalText([]byte(text)) }

// Type implements pflag's Value.
func (d *Delay) Type() string { return "delay" }

// Size is a number of bytes that people write as 20GiB or 500MB.
type Size int64

// String writes the size with a binary unit.
func (s Size) String() string { return strings.ReplaceAll(humanize.IBytes(uint64(max(s, 0))), " ", "") }

// MarshalText writes what String does.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a number with a unit, or of bytes.
func (s *Size) UnmarshalText(b []byte) error {
	n, err := humanize.ParseBytes(string(b))
	if err != nil || n > 1<<62 {
		return fmt.Errorf("%q is not a size: write 20GiB or 500MB", b)
	}
	*s = Size(n)
	return nil
}

// Set implements the flag packages' Value.
func (s *Size) Set(text string) error { return s.UnmarshalText([]byte(text)) }

// Type implements pflag's Value.
func (s *Size) Type() string { return "size" }

// Space is a part of a disk that people write as 17% or as a Size.
type Space disk.Space

// String writes what UnmarshalText reads.
func (s Space) String() string {
	if s.Percent > 0 {
		return strconv.FormatFloat(s.Percent, 'g', -1, 64) + "%"
	}
	return Size(s.Bytes).String()
}

// MarshalText writes what String does.
func (s Space) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a share in percent, or a size.
func (s *Space) UnmarshalText(b []byte) error {
	if share, ok := strings.CutSuffix(string(b), "%"); ok {
		percent, err := strconv.ParseFloat(strings.TrimSpace(share), 64)
		if err != nil || !(percent >= 0 && percent < 100) {
			return fmt.Errorf("%q is not a share of a disk: write 17%%", b)
		}
		*s = Space{Percent: percent}
		return nil
	}
	var size Size
	if err := size.UnmarshalText(b); err != nil {
		return fmt.Errorf("%q is not a part of a disk: write 17%% or 50GiB", b)
	}
	if size > 0 && size < leastSpace {
		return fmt.Errorf("%q is a few bytes of a disk: write 17%% or 50GiB", b)
	}
	*s = Space{Bytes: int64(size)}
	return nil
}

// leastSpace is what nobody means who leaves the unit out.
const leastSpace = 1 << 20

// below tells whether it is less than other on any disk.
func (s Space) below(other Space) bool {
	if s == (Space{}) { // the other alone counts
		return false
	}
	return s.Percent < other.Percent && s.Bytes <= other.Bytes || s.Bytes < other.Bytes && s.Percent <= other.Percent
}

// Set implements the flag packages' Value.
func (s *Space) Set(text string) error { return s.UnmarshalText([]byte(text)) }

// Type implements pflag's Value.
func (s *Space) Type() string { return "space" }
