package trace

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"lighter/format/chunk"
)

const (
	// MaxRecordings bounds the recordings of a text, MaxEntries the entries of a recording, and
	// MaxText the text in bytes.
	MaxRecordings = 256
	MaxEntries    = 65_536
	MaxText       = 32 << 20

	maxPath  = 4095    // bytes of a path
	maxFile  = 1 << 43 // end of a range in its file, in bytes
	maxCount = 1 << 31 // starts of a recording

	// RecordingsFormat is the number of the format of recordings.
	RecordingsFormat = 1

	firstLine = "lighter trace " + string(rune('0'+RecordingsFormat))
)

// Entry is one range of one file.
type Entry struct {
	At     time.Duration // since the recording began, in whole milliseconds
	Path   string        // in the image: absolute and clean, at most 4095 bytes
	Offset int64         // in the file, in bytes
	Length int64         // in bytes, not 0; may exceed the file
	Chunks []chunk.ID    // chunks of the range, in order; may be empty
}

// Recording lists what one start of an image has read, or several similar starts.
type Recording struct {
	Starts  int64 // number of starts, at least 1
	Entries []Entry
}

// EncodeText returns the text of recordings. It truncates what exceeds the bounds, and leaves out
// entries that ParseText would refuse.
func EncodeText(recordings []Recording) []byte {
	out := []byte(firstLine + "\n")
	for _, r := range recordings[:min(len(recordings), MaxRecordings)] {
		head := fmt.Sprintf("starts %d\n", min(max(r.Starts, 1), maxCount))
		if len(out)+len(head) > MaxText {
			break
		}
		out = append(out, head...)
		last, count := time.Duration(0), 0
		for _, e := range r.Entries {
			if e.check() != nil || e.At < last {
				continue
			}
			line := e.text()
			if count == MaxEntries || len(out)+len(line) > MaxText {
				break
			}
			out = append(out, line...)
			last, count = e.At, count+1
		}
	}
	return out
}

// Size returns the approximate length of the entry's text, in bytes.
func (e *Entry) Size() int { return 32 + len(e.Path) + 65*len(e.Chunks) }

// text returns the entry's line: ms offset length path chunk…
func (e *Entry) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %d %d %s", e.At.Milliseconds(), e.Offset, e.Length, escape(e.Path))
	for _, id := range e.Chunks {
		b.WriteByte(' ')
		b.WriteString(id.String())
	}
	b.WriteByte('\n')
	return b.String()
}

// check returns an error if the format does not allow the entry.
func (e *Entry) check() error {
	switch {
	case e.At < 0 || e.At > MaxTime:
		return fmt.Errorf("time %s, want 0 to %s", e.At, MaxTime)
	case len(e.Path) > maxPath || !strings.HasPrefix(e.Path, "/") || path.Clean(e.Path) != e.Path ||
		strings.Contains(e.Path, "\x00"):
		return fmt.Errorf("%.100q is not an absolute, clean path", e.Path)
	case e.Offset < 0 || e.Length <= 0 || e.Length > maxFile || e.Offset > maxFile-e.Length:
		return fmt.Errorf("range of %d bytes at %d is invalid", e.Length, e.Offset)
	}
	for _, id := range e.Chunks {
		if id.IsZero() {
			return errors.New("chunk ID is zero")
		}
	}
	return nil
}

// ParseText parses the text of recordings. It accepts only what EncodeText writes. Errors name the
// line.
func ParseText(text []byte) ([]Recording, error) {
	if len(text) > MaxText {
		return nil, fmt.Errorf("recordings of %d bytes, want at most %d", len(text), MaxText)
	}
	rest, ok := bytes.CutPrefix(text, []byte(firstLine+"\n"))
	if !ok {
		return nil, fmt.Errorf("not recordings: the first line is not %q", firstLine)
	}
	var out []Recording
	for n := 2; len(rest) > 0; n++ {
		line, tail, whole := bytes.Cut(rest, []byte("\n"))
		if !whole {
			return nil, fmt.Errorf("line %d of the recordings has no end", n)
		}
		var err error
		if out, err = addLine(out, string(line)); err != nil {
			return nil, fmt.Errorf("line %d of the recordings: %w", n, err)
		}
		rest = tail
	}
	return out, nil
}

// addLine adds a line to the recordings.
func addLine(out []Recording, line string) ([]Recording, error) {
	if count, ok := strings.CutPrefix(line, "starts "); ok {
		n, err := number(count)
		if err != nil || n == 0 || n > maxCount {
			return nil, fmt.Errorf("%.100q is not a number of starts", count)
		}
		if len(out) == MaxRecordings {
			return nil, fmt.Errorf("more than %d recordings", MaxRecordings)
		}
		return append(out, Recording{Starts: n}), nil
	}
	if len(out) == 0 {
		return nil, errors.New(`entry before the first "starts" line`)
	}
	e, err := parseEntry(line)
	if err != nil {
		return nil, err
	}
	r := &out[len(out)-1]
	if len(r.Entries) == MaxEntries {
		return nil, fmt.Errorf("more than %d entries", MaxEntries)
	}
	if len(r.Entries) > 0 && e.At < r.Entries[len(r.Entries)-1].At {
		return nil, fmt.Errorf("entry at %d ms after one at %d ms", e.At.Milliseconds(),
			r.Entries[len(r.Entries)-1].At.Milliseconds())
	}
	r.Entries = append(r.Entries, e)
	return out, nil
}

func parseEntry(line string) (Entry, error) {
	fields := strings.Split(line, " ")
	if len(fields) < 4 {
		return Entry{}, fmt.Errorf("%.100q is not an entry: want ms, offset, length and path", line)
	}
	var numbers [3]int64
	for i := range numbers {
		n, err := number(fields[i])
		if err != nil {
			return Entry{}, err
		}
		numbers[i] = n
	}
	if numbers[0] > MaxTime.Milliseconds() {
		return Entry{}, fmt.Errorf("time %d ms, want at most %s", numbers[0], MaxTime)
	}
	name, err := unescape(fields[3])
	if err != nil {
		return Entry{}, err
	}
	e := Entry{At: time.Duration(numbers[0]) * time.Millisecond, Path: name, Offset: numbers[1], Length: numbers[2]}
	for _, f := range fields[4:] {
		id, err := chunk.ParseID(f)
		if err != nil {
			return Entry{}, err
		}
		e.Chunks = append(e.Chunks, id)
	}
	return e, e.check()
}

// number parses a decimal number without sign and leading zeros.
func number(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != s {
		return 0, fmt.Errorf("%.100q is not a number", s)
	}
	return n, nil
}

// plain reports whether a byte of a path is written as it is.
func plain(c byte) bool { return c > ' ' && c < 0x7f && c != '%' }

// escape encodes a path without white space: it replaces %, and bytes that are not printable ASCII,
// by % and two upper-case hexadecimal digits.
func escape(name string) string {
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; plain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// unescape decodes a path. It accepts only what escape writes.
func unescape(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '%' && i+2 < len(s) {
			n, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
			if err != nil {
				return "", fmt.Errorf("%.100q is not an escaped path", s)
			}
			c = byte(n)
			i += 2
		}
		b.WriteByte(c)
	}
	if name := b.String(); escape(name) == s {
		return name, nil
	}
	return "", fmt.Errorf("%.100q is not an escaped path", s)
}
