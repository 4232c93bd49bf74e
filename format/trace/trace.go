// Package trace promises that what a start of a container read can be written
// down, sent and kept in few bytes, and that what is read back is within
// bounds, whoever wrote it.
//
// There are two forms. A Trace is what a node records: ranges of one tree's
// device, in the order of reading, on the wire as JSON. A Recording is what a hub
// keeps and people pass on: ranges of files, by path, with the chunks that lay
// there, so that it means something for the image's next build too; it is text,
// one range a line. docs/format.md has both.
//
// The package refuses to know what ran: there is no room for arguments, names of
// hosts or the time of day. It does not check that a range is of any use: a trace
// is a hint, which may be absurd and then costs bytes, never correctness.
package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"lighter/format/chunk"
)

const (
	// MaxReads bounds the reads of a trace.
	MaxReads = 32_768
	// MaxBytes bounds a trace on the wire.
	MaxBytes = 1 << 20
	// MaxTime is how long after the mount a read may be.
	MaxTime = time.Hour

	page      = 4096
	maxDevice = (1<<32 - 1) * page
)

// Read is one read of the device, or several that touch each other.
type Read struct {
	At     time.Duration // since the tree was mounted, whole milliseconds
	Offset int64         // on the device, in bytes, a multiple of 4096
	Length int64         // in bytes, a multiple of 4096, not 0
}

// Trace is what one start read of a tree's device, in order.
type Trace struct {
	Tree  chunk.ID
	Reads []Read
}

// Encode returns the trace's JSON: {"reads":[[ms,offset,length],…]}. Of a trace
// that is too long, its beginning.
func (t Trace) Encode() []byte {
	out := []byte(`{"reads":[`)
	for _, r := range t.Reads[:min(len(t.Reads), MaxReads)] {
		end := len(out)
		if out[end-1] == ']' {
			out = append(out, ',')
		}
		out = append(out, '[')
		out = strconv.AppendInt(out, r.At.Milliseconds(), 10)
		out = append(out, ',')
		out = strconv.AppendInt(out, r.Offset, 10)
		out = append(out, ',')
		out = strconv.AppendInt(out, r.Length, 10)
		out = append(out, ']')
		if len(out) > MaxBytes-2 {
			out = out[:end]
			break
		}
	}
	return append(out, "]}"...)
}

// Decode reads the JSON of a trace of the tree, whose device has the given
// number of bytes. It takes nothing that is not as Encode writes it, but for
// white space: reads in order of time, each a range of whole pages of the device.
func Decode(b []byte, tree chunk.ID, device int64) (Trace, error) {
	if len(b) > MaxBytes {
		return Trace{}, fmt.Errorf("a trace of %d bytes, more than %d", len(b), MaxBytes)
	}
	var body struct {
		Reads [][]int64 `json:"reads"`
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil {
		return Trace{}, fmt.Errorf("decode a trace: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return Trace{}, errors.New("decode a trace: something follows it")
	}
	if len(body.Reads) > MaxReads {
		return Trace{}, fmt.Errorf("a trace of %d reads, more than %d", len(body.Reads), MaxReads)
	}
	t := Trace{Tree: tree, Reads: make([]Read, 0, len(body.Reads))}
	last := int64(0)
	for i, r := range body.Reads {
		if len(r) != 3 || r[0] < last || r[0] > MaxTime.Milliseconds() || !within(r[1], r[2], device) {
			return Trace{}, fmt.Errorf("read %d of the trace is %v, on a device of %d bytes: want [ms,offset,length], by time, whole pages", i, r, device)
		}
		last = r[0]
		t.Reads = append(t.Reads, Read{At: time.Duration(r[0]) * time.Millisecond, Offset: r[1], Length: r[2]})
	}
	return t, nil
}

// within tells whether a range is of whole pages of a device.
func within(offset, length, device int64) bool {
	device = min(device, maxDevice)
	return offset >= 0 && length > 0 && offset%page == 0 && length%page == 0 && length <= device && offset <= device-length
}
