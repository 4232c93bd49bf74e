// Package trace encodes what a container reads when it starts, in few bytes and within bounds.
//
// There are two forms. A node reports a Trace: ranges of one tree's device in the order of reading,
// as JSON. A hub keeps a Recording: ranges of files by path, with the chunks that they had, so that
// it also fits the image's next build. Its form is text with one range a line. docs/format.md has
// both.
//
// Neither form can hold arguments, host names or the time of day. The package checks the form of
// its input, not its use: a trace is a hint, and an absurd one costs bytes, never correctness.
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
	// MaxBytes bounds the JSON of a trace, in bytes.
	MaxBytes = 1 << 20
	// MaxTime bounds the time from the beginning of a recording to a read.
	MaxTime = time.Hour

	page      = 4096
	maxDevice = (1<<32 - 1) * page
)

// Read is one read of the device, or several adjacent ones.
type Read struct {
	At     time.Duration // since the recording began, in whole milliseconds
	Offset int64         // on the device, in bytes, a multiple of 4096
	Length int64         // in bytes, a multiple of 4096, not 0
}

// Trace lists the reads of a tree's device that one start made, in order.
type Trace struct {
	Tree  chunk.ID
	Reads []Read
}

// Encode returns the trace's JSON: {"reads":[[ms,offset,length],…]}. It truncates a trace that
// exceeds the bounds.
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

// Decode parses the JSON of a trace. device is the size of the tree's device in bytes. Reads must
// be in the order of time, and ranges of whole pages of the device. Decode refuses unknown fields,
// and data after the end.
func Decode(b []byte, tree chunk.ID, device int64) (Trace, error) {
	if len(b) > MaxBytes {
		return Trace{}, fmt.Errorf("decode trace: %d bytes, want at most %d", len(b), MaxBytes)
	}
	var body struct {
		Reads [][]int64 `json:"reads"`
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil {
		return Trace{}, fmt.Errorf("decode trace: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return Trace{}, errors.New("decode trace: data after its end")
	}
	if len(body.Reads) > MaxReads {
		return Trace{}, fmt.Errorf("decode trace: %d reads, want at most %d", len(body.Reads), MaxReads)
	}
	t := Trace{Tree: tree, Reads: make([]Read, 0, len(body.Reads))}
	last := int64(0)
	for i, r := range body.Reads {
		if len(r) != 3 || r[0] < last || r[0] > MaxTime.Milliseconds() || !within(r[1], r[2], device) {
			return Trace{}, fmt.Errorf("decode trace: read %d is %v on a device of %d bytes: "+
				"want [ms,offset,length], ordered by time, whole pages", i, r, device)
		}
		last = r[0]
		t.Reads = append(t.Reads, Read{At: time.Duration(r[0]) * time.Millisecond, Offset: r[1], Length: r[2]})
	}
	return t, nil
}

// within reports whether a range consists of whole pages of a device.
func within(offset, length, device int64) bool {
	device = min(device, maxDevice)
	return offset >= 0 && length > 0 && offset%page == 0 && length%page == 0 && length <= device &&
		offset <= device-length
}
