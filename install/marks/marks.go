// Package marks puts lines of ours into a text file of somebody else, between two marks, and takes
// them out again. The marks are comments that begin with "#". Undo needs nothing but the text: if
// nobody has changed it, the result is the original text, byte for byte. Otherwise only our lines
// are taken out, and lines that we had replaced are restored.
//
// The package knows no file format. A caller must insert whole lines where a line that begins with
// "#" is a comment.
package marks

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// kept precedes each replaced line, which stays in the text as a comment.
const kept = "#|"

// Marker writes and finds the marks of one target of `lighter install`.
type Marker struct {
	Target string // as on the command line: containerd
}

// Origin says what was there before our lines.
type Origin string

const (
	File      Origin = ""                               // a file
	Nothing   Origin = " (new file)"                    // no file
	NothingIn Origin = " (new file in a new directory)" // no file, and no directory for it
)

func (m Marker) begin() string { return "# >>> lighter install " + m.Target }
func (m Marker) end() string   { return "# <<< lighter install " + m.Target }

// Edit inserts lines into a text, or replaces lines of it.
type Edit struct {
	At, Until int    // what is replaced: offsets of the beginnings of two lines; equal: nothing
	Lines     string // the new lines, each with a final "\n"
}

// Apply applies edits that do not overlap. Each end of a line is like the first one in the text.
// If the text does not end with an end of line, the result does not, either.
func (m Marker) Apply(text []byte, origin Origin, edits []Edit) []byte {
	if len(edits) == 0 {
		return text
	}
	edits = slices.Clone(edits)
	slices.SortStableFunc(edits, func(a, b Edit) int {
		if a.At != b.At {
			return a.At - b.At
		}
		return a.Until - b.Until
	})
	eol := endOfLine(text)
	open := len(text) > 0 && !bytes.HasSuffix(text, []byte("\n"))
	if open {
		text = slices.Concat(text, []byte(eol))
	}
	whole := func(at int) int { // the offset of the line that begins at the end of the text, too
		if open && at == len(text)-len(eol) {
			return len(text)
		}
		return at
	}
	var out bytes.Buffer
	at := 0
	for i, e := range edits {
		e.At, e.Until = whole(e.At), whole(e.Until)
		if i == 0 || e.At > at {
			if i > 0 {
				out.WriteString(m.end() + eol)
			}
			out.Write(text[at:e.At])
			out.WriteString(m.begin() + string(origin) +
				": lighter wrote the lines up to the next mark; \"lighter uninstall " + m.Target + "\" undoes it" + eol)
		}
		for line := range bytes.Lines(text[e.At:e.Until]) {
			out.WriteString(kept)
			out.Write(line)
		}
		out.WriteString(strings.ReplaceAll(e.Lines, "\n", eol))
		at = e.Until
	}
	out.WriteString(m.end() + eol)
	out.Write(text[at:])
	if open {
		return bytes.TrimSuffix(out.Bytes(), []byte(eol))
	}
	return out.Bytes()
}

// endOfLine returns how the lines of a text end.
func endOfLine(text []byte) string {
	if first, _, found := bytes.Cut(text, []byte("\n")); found && bytes.HasSuffix(first, []byte("\r")) {
		return "\r\n"
	}
	return "\n"
}

// Undone is a text without our lines.
type Undone struct {
	Text   []byte
	Blocks int    // number of pairs of marks that were in the text
	Origin Origin // of the first pair
}

// Gone reports whether there was no file before our lines, and nobody has added any.
func (u Undone) Gone() bool { return u.Origin != File && len(bytes.TrimSpace(u.Text)) == 0 }

// Undo takes our lines out of a text. If the marks are not pairs, it fails and names the line.
func (m Marker) Undo(text []byte) (Undone, error) {
	var u Undone
	var out bytes.Buffer
	number, began, dropped := 0, 0, "" // dropped: the end of line that Apply added to the text
	eol := ""                          // of the last mark that begins
	for line := range bytes.Lines(text) {
		number++
		trimmed := string(bytes.TrimSpace(line))
		switch {
		case m.isMark(trimmed, m.begin()) && began > 0, m.isMark(trimmed, m.end()) && began == 0:
			return u, fmt.Errorf("line %d: the marks of lighter install are not pairs: remove the lines by hand",
				number)
		case m.isMark(trimmed, m.begin()):
			began = number
			if u.Blocks++; u.Blocks == 1 {
				u.Origin = originOf(strings.TrimPrefix(trimmed, m.begin()))
			}
			eol = string(line[len(bytes.TrimRight(line, "\r\n")):])
		case m.isMark(trimmed, m.end()):
			began = 0
			if !bytes.HasSuffix(line, []byte("\n")) {
				dropped = eol
			}
		case began == 0:
			out.Write(line)
		default:
			if old, ok := bytes.CutPrefix(bytes.TrimLeft(line, " \t"), []byte(kept)); ok {
				out.Write(old)
			}
		}
	}
	if began > 0 {
		return u, fmt.Errorf("line %d: a mark of lighter install has no second one: remove the lines by hand", began)
	}
	u.Text = append([]byte{}, bytes.TrimSuffix(out.Bytes(), []byte(dropped))...) // never nil
	return u, nil
}

// isMark reports whether a line is a mark. Another target's name may begin with this target's.
func (m Marker) isMark(line, mark string) bool {
	rest, ok := strings.CutPrefix(line, mark)
	return ok && (rest == "" || rest[0] == ':' || rest[0] == ' ')
}

func originOf(rest string) Origin {
	for _, origin := range []Origin{NothingIn, Nothing} {
		if strings.HasPrefix(rest, string(origin)) {
			return origin
		}
	}
	return File
}

// In reports whether a text contains a mark.
func (m Marker) In(text []byte) bool {
	return bytes.Contains(text, []byte(m.begin())) || bytes.Contains(text, []byte(m.end()))
}
