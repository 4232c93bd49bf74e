package node

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"lighter/bytesize"
	"lighter/store/disk"
)

// Flat says for which tool the images in the directory of images have files besides their own.
type Flat string

// Values of Flat.
const (
	FlatNone      Flat = ""
	FlatApptainer Flat = "apptainer" // package apptainer
)

var flats = []Flat{FlatNone, FlatApptainer}

// Delay is a duration, written as 90s or 5m.
type Delay time.Duration

// String returns the delay in the notation of time.Duration.
func (d Delay) String() string { return time.Duration(d).String() }

// MarshalText implements encoding.TextMarshaler.
func (d Delay) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses a duration, as time.ParseDuration does.
func (d *Delay) UnmarshalText(b []byte) error {
	n, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("%q is not a delay: write 90s or 5m", b)
	}
	*d = Delay(n)
	return nil
}

// Space is a part of a disk, written as 17% or as a size.
type Space disk.Space

// String returns what UnmarshalText parses.
func (s Space) String() string {
	if s.Percent > 0 {
		return strconv.FormatFloat(s.Percent, 'g', -1, 64) + "%"
	}
	return bytesize.Size(s.Bytes).String()
}

// MarshalText implements encoding.TextMarshaler.
func (s Space) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses a percentage, or a size.
func (s *Space) UnmarshalText(b []byte) error {
	if share, ok := strings.CutSuffix(string(b), "%"); ok {
		percent, err := strconv.ParseFloat(strings.TrimSpace(share), 64)
		if err != nil || !(percent >= 0 && percent < 100) {
			return fmt.Errorf("%q is not a share of a disk: write 17%%", b)
		}
		*s = Space{Percent: percent}
		return nil
	}
	var size bytesize.Size
	if err := size.UnmarshalText(b); err != nil {
		return fmt.Errorf("%q is not a part of a disk: write 17%% or 50GiB", b)
	}
	if size > 0 && size < minSpace {
		return fmt.Errorf("%q is less than 1 MiB of a disk: write 17%% or 50GiB", b)
	}
	*s = Space{Bytes: int64(size)}
	return nil
}

// minSpace is the smallest size of a Space, in bytes. A smaller number probably lacks its unit.
const minSpace = 1 << 20

// below reports whether s is less than other on a disk of any size.
func (s Space) below(other Space) bool {
	if s == (Space{}) { // zero means that s is not configured
		return false
	}
	return s.Percent < other.Percent && s.Bytes <= other.Bytes || s.Bytes < other.Bytes && s.Percent <= other.Percent
}
