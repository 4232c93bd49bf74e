// Package jsontext sets keys of a JSON object without touching its other bytes: order, white space
// and ends of lines stay. JSON has no comments, so nothing in the text shows what was changed.
// Instead, each change is an Edit, which the caller keeps in order to undo it.
//
// What cannot be edited safely is refused: a text that is no JSON object, or has a key twice.
package jsontext

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Edit replaces bytes of a text.
type Edit struct {
	At  int    `json:"at"` // offset of the replaced bytes
	Old string `json:"old"`
	New string `json:"new"`
}

// Apply applies an edit to a text that it was made for.
func (e Edit) Apply(text []byte) []byte {
	return []byte(string(text[:e.At]) + e.New + string(text[e.At+len(e.Old):]))
}

// Fits reports whether a text has the bytes that the edit replaces.
func (e Edit) Fits(text []byte) bool {
	return e.At >= 0 && e.At <= len(text) && bytes.HasPrefix(text[e.At:], []byte(e.Old))
}

// Inverse returns the edit that undoes this one.
func (e Edit) Inverse() Edit { return Edit{At: e.At, Old: e.New, New: e.Old} }

// object is an object of a text.
type object struct {
	open, end int // offsets of its first byte, and behind its last one
	members   []member
}

// member is a key with its value. It has offsets of the text.
type member struct {
	key              string
	keyStart, keyEnd int
	start, end       int // of the value
}

// find returns the member with a key, and its number.
func (o object) find(key string) (m member, i int, ok bool) {
	for i, m := range o.members {
		if m.key == key {
			return m, i, true
		}
	}
	return member{}, 0, false
}

const space = " \t\r\n"

// parse parses the object that begins at an offset of a text.
func parse(text []byte, at int) (object, error) {
	o := object{open: at}
	d := json.NewDecoder(bytes.NewReader(text[at:]))
	if _, err := d.Token(); err != nil {
		return o, located(text, at, err)
	}
	offset := func() int { return at + int(d.InputOffset()) }
	skip := func(from int, bytes string) int {
		return from + len(text[from:]) - len(strings.TrimLeft(string(text[from:]), bytes))
	}
	for d.More() {
		m := member{keyStart: skip(offset(), ","+space)}
		key, err := d.Token()
		if err != nil {
			return o, located(text, at, err)
		}
		m.key, m.keyEnd = key.(string), offset()
		m.start = skip(m.keyEnd, ":"+space)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return o, located(text, at, err)
		}
		m.end = m.start + len(value)
		if _, _, twice := o.find(m.key); twice {
			return o, fmt.Errorf("line %d: the key %q occurs twice", lineOf(text, m.keyStart), m.key)
		}
		o.members = append(o.members, m)
	}
	if _, err := d.Token(); err != nil {
		return o, located(text, at, err)
	}
	o.end = offset()
	return o, nil
}

// whole parses a text, which has to be one object.
func whole(text []byte) (object, error) {
	at := len(text) - len(bytes.TrimLeft(text, space))
	if err := json.Unmarshal(text, new(any)); err != nil {
		return object{}, located(text, 0, err)
	}
	if text[at] != '{' {
		return object{}, fmt.Errorf("line %d: the text is no object", lineOf(text, at))
	}
	return parse(text, at)
}

// located adds a line to an error of encoding/json about the text from an offset on.
func located(text []byte, at int, err error) error {
	wrong := (*json.SyntaxError)(nil)
	switch {
	case errors.As(err, &wrong):
		return fmt.Errorf("line %d: %w", lineOf(text, at+int(wrong.Offset)-1), err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("line %d: the text ends too early", lineOf(text, len(text)))
	}
	return err
}

// lineOf returns the number of the line with an offset.
func lineOf(text []byte, offset int) int {
	return 1 + bytes.Count(text[:min(max(offset, 0), len(text))], []byte("\n"))
}

// Lookup returns the value at a path of keys, or nil if there is none.
func Lookup(text []byte, path ...string) (json.RawMessage, error) {
	o, err := whole(text)
	for i, key := range path {
		if err != nil {
			return nil, err
		}
		m, _, ok := o.find(key)
		switch {
		case !ok:
			return nil, nil
		case i == len(path)-1:
			return json.RawMessage(text[m.start:m.end]), nil
		case text[m.start] != '{':
			return nil, notObject(path[:i+1])
		}
		o, err = parse(text, m.start)
	}
	return nil, err
}

func notObject(path []string) error {
	return fmt.Errorf("%s is no object", strings.Join(path, "."))
}

// Empty reports whether a text is an object without keys.
func Empty(text []byte) (bool, error) {
	o, err := whole(text)
	return err == nil && len(o.members) == 0, err
}

// Set returns the edit that gives the key at a path a value, and makes the objects of the path that
// do not exist.
func Set(text []byte, value json.RawMessage, path ...string) (Edit, error) {
	o, err := whole(text)
	if err != nil {
		return Edit{}, err
	}
	return o.set(text, value, path)
}

func (o object) set(text []byte, value json.RawMessage, path []string) (Edit, error) {
	m, _, ok := o.find(path[0])
	switch {
	case ok && len(path) == 1:
		return Edit{At: m.start, Old: string(text[m.start:m.end]), New: string(value)}, nil
	case ok && text[m.start] != '{':
		return Edit{}, notObject(path[:1])
	case ok:
		inner, err := parse(text, m.start)
		if err != nil {
			return Edit{}, err
		}
		return inner.set(text, value, path[1:])
	}
	for i := len(path) - 1; i > 0; i-- {
		value = json.RawMessage(fmt.Sprintf("{%s: %s}", quoted(path[i]), value))
	}
	return o.add(text, quoted(path[0]), string(value)), nil
}

// add returns the edit that adds a member at the end. It looks like the last one.
func (o object) add(text []byte, key, value string) Edit {
	if len(o.members) == 0 {
		inner := string(text[o.open+1 : o.end-1])
		if nested := len(bytes.TrimLeft(text[:o.open], space)) > 0; nested {
			return Edit{At: o.open + 1, New: key + ": " + value}
		}
		eol := "\n"
		if strings.Contains(string(text), "\r\n") {
			eol = "\r\n"
		}
		e := Edit{At: o.open + 1, New: eol + "  " + key + ": " + value}
		if !strings.Contains(inner, "\n") {
			e.New += eol
		}
		return e
	}
	last := o.members[len(o.members)-1]
	before := string(text[:last.keyStart])
	indent := before[len(strings.TrimRight(before, space)):]
	colon := string(text[last.keyEnd:last.start])
	if indent == "" && len(colon) > 1 {
		indent = " "
	}
	return Edit{At: last.end, New: "," + indent + key + colon + value}
}

// Remove returns the edit that removes the key at a path. It does nothing if there is none.
func Remove(text []byte, path ...string) (Edit, error) {
	o, err := whole(text)
	for i, key := range path {
		if err != nil {
			return Edit{}, err
		}
		m, number, ok := o.find(key)
		switch {
		case !ok:
			return Edit{}, nil
		case i == len(path)-1:
			return o.remove(text, number), nil
		case text[m.start] != '{':
			return Edit{}, nil
		}
		o, err = parse(text, m.start)
	}
	return Edit{}, err
}

func (o object) remove(text []byte, i int) Edit {
	from, until := o.open+1, o.members[i].end
	switch {
	case i > 0:
		from = o.members[i-1].end
	case len(o.members) > 1:
		from, until = o.members[0].keyStart, o.members[1].keyStart
	}
	return Edit{At: from, Old: string(text[from:until])}
}

func quoted(key string) string {
	text, _ := json.Marshal(key) // a string can always be encoded
	return string(text)
}
