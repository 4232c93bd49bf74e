// Package tomltext sets keys in a TOML document without touching its other bytes: comments, order,
// white space and ends of lines stay. It computes edits of whole lines (package marks), which can
// be undone.
//
// A key that exists gets a new value in its place. A new key is added to its table where that
// table is defined, or in a new table at the end. What cannot be edited line by line is refused: a
// document that is no TOML, and a table that is written as an inline table.
package tomltext

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"lighter/install/marks"
)

// Setting is a key that a document shall have.
type Setting struct {
	Table []string // the path of its table; empty: the root table
	Key   string
	Value any
}

func (s Setting) path() []string { return slices.Concat(s.Table, []string{s.Key}) }

// Element is a table that an array of tables gets in addition. Its keys belong to no table.
type Element struct {
	Array []string
	Keys  []Setting
}

// Document is a TOML document. It does not change.
type Document struct {
	text    []byte
	values  map[string]any
	entries []entry
}

// entry is a line [table], a line [[table]], or a key with its value.
type entry struct {
	kind             unstable.Kind // Table, ArrayTable or KeyValue
	path             []string      // from the root table
	header           int           // number of the entry that is the header of the table; -1: none
	keys             int           // how many parts of path are on this line
	start, end       int           // its lines
	keyStart, keyEnd int           // the key on its line
	value            unstable.Kind
}

// Parse parses a document. Its error names the line.
func Parse(text []byte) (*Document, error) {
	d := &Document{text: slices.Clone(text), values: map[string]any{}}
	if err := toml.Unmarshal(d.text, &d.values); err != nil {
		if wrong := (*toml.DecodeError)(nil); errors.As(err, &wrong) {
			line, _ := wrong.Position()
			return nil, fmt.Errorf("line %d: %s", line, strings.TrimPrefix(wrong.Error(), "toml: "))
		}
		return nil, err
	}
	return d, d.scan()
}

// scan finds the lines of all entries.
func (d *Document) scan() error {
	var p unstable.Parser
	p.Reset(d.text)
	header := -1
	for p.NextExpression() {
		n := p.Expression()
		e := entry{kind: n.Kind, header: header, keyStart: -1}
		for keys := n.Key(); keys.Next(); {
			key := keys.Node()
			if e.keyStart < 0 {
				e.keyStart = int(key.Raw.Offset)
			}
			e.keyEnd = int(key.Raw.Offset + key.Raw.Length)
			e.path = append(e.path, string(key.Data))
		}
		e.keys, e.end = len(e.path), e.keyEnd
		if n.Kind == unstable.KeyValue {
			e.value, e.end = n.Value().Kind, int(n.Raw.Offset+n.Raw.Length)
			if header >= 0 {
				e.path = slices.Concat(d.entries[header].path, e.path)
			}
		} else {
			header = len(d.entries)
			e.header = header
		}
		e.start = bytes.LastIndexByte(d.text[:e.keyStart], '\n') + 1
		if i := bytes.IndexByte(d.text[e.end:], '\n'); i >= 0 {
			e.end += i + 1
		} else {
			e.end = len(d.text)
		}
		d.entries = append(d.entries, e)
	}
	return p.Error()
}

// Lookup returns the value of a key, a table or an array.
func (d *Document) Lookup(path ...string) (any, bool) {
	var value any = d.values
	for _, key := range path {
		table, ok := value.(map[string]any)
		if !ok {
			return nil, false
		}
		if value, ok = table[key]; !ok {
			return nil, false
		}
	}
	return value, true
}

// Has reports whether a key has the value of a setting.
func (d *Document) Has(s Setting) bool {
	value, ok := d.Lookup(s.path()...)
	return ok && valueText(value) == valueText(s.Value)
}

// FirstTable returns where the document's first table begins, with the comments just above it. It
// is the end of the document if there is none.
func (d *Document) FirstTable() int {
	for _, e := range d.entries {
		if e.kind == unstable.KeyValue {
			continue
		}
		at := e.start
		for at > 0 {
			above := bytes.LastIndexByte(d.text[:at-1], '\n') + 1
			if !bytes.HasPrefix(bytes.TrimLeft(d.text[above:at], " \t"), []byte("#")) {
				break
			}
			at = above
		}
		return at
	}
	return len(d.text)
}

// Edits returns the edits that give the document all settings and additional elements. Settings
// that it has already need none.
func (d *Document) Edits(settings []Setting, elements []Element) ([]marks.Edit, error) {
	var edits []marks.Edit
	var missing []Setting // of tables that the document does not define
	for _, s := range settings {
		if d.Has(s) {
			continue
		}
		edit, found, err := d.place(s)
		if err != nil {
			return nil, err
		}
		if !found {
			missing = append(missing, s)
			continue
		}
		edits = append(edits, edit)
	}
	end, err := d.extend(elements, &edits)
	if err != nil {
		return nil, err
	}
	if lines := tables(missing) + end; lines != "" {
		edits = append(edits, marks.Edit{At: len(d.text), Until: len(d.text), Lines: lines})
	}
	return edits, nil
}

// place returns the edit that sets a key where its table is defined.
func (d *Document) place(s Setting) (edit marks.Edit, found bool, err error) {
	path := s.path()
	for i, e := range d.entries {
		switch {
		case e.kind == unstable.KeyValue && slices.Equal(e.path, path):
			return d.replace(e, valueText(s.Value)), true, nil
		case e.kind == unstable.KeyValue && startsWith(path, e.path):
			return edit, false, d.refusal(e, "is not a table that can be edited line by line")
		case e.kind == unstable.ArrayTable && startsWith(path, e.path):
			return edit, false, d.refusal(e, "is an array of tables")
		case slices.Equal(e.path, path), startsWith(e.path, path):
			return edit, false, d.refusal(e, "makes a table of a key: "+dotted(path))
		case e.kind == unstable.Table && slices.Equal(e.path, s.Table):
			edit, found = d.insert(d.last(i), []string{s.Key}, s.Value), true
		case e.kind == unstable.KeyValue && startsWith(e.path, s.Table) && len(e.path)-e.keys < len(s.Table):
			// A key like a.b.c = 1 defines the table a.b, which must not get a header.
			edit, found = d.insert(i, path[len(e.path)-e.keys:], s.Value), true
		}
	}
	if len(s.Table) == 0 {
		edit, found = d.insert(d.last(-1), path, s.Value), true
	}
	return edit, found, nil
}

// last returns the number of the last key below a header, or of the header.
func (d *Document) last(header int) int {
	last := header
	for i, e := range d.entries {
		if e.kind == unstable.KeyValue && e.header == header {
			last = i
		}
	}
	return last
}

// insert returns the edit that adds a key after an entry, or at the beginning of the document (-1).
// key is the key as seen from the entry's header.
func (d *Document) insert(after int, key []string, value any) marks.Edit {
	if after < 0 {
		return marks.Edit{Lines: line("", key, value)}
	}
	e := d.entries[after]
	indent := d.indent(e)
	if e.kind != unstable.KeyValue {
		indent += "  "
	}
	return marks.Edit{At: e.end, Until: e.end, Lines: line(indent, key, value)}
}

// replace returns the edit that gives a key a new value.
func (d *Document) replace(e entry, value string) marks.Edit {
	return marks.Edit{At: e.start, Until: e.end,
		Lines: d.indent(e) + string(d.text[e.keyStart:e.keyEnd]) + " = " + value + "\n"}
}

// indent returns the white space before an entry.
func (d *Document) indent(e entry) string {
	line := d.text[e.start:]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

// extend adds the edits of arrays whose elements are in one value. For other arrays it returns the
// lines to be added at the end of the document.
func (d *Document) extend(elements []Element, edits *[]marks.Edit) (end string, err error) {
	inline := map[int]string{} // elements by the number of the array's entry
	for _, element := range elements {
		at := -1
		for i, e := range d.entries {
			switch {
			case e.kind == unstable.KeyValue && slices.Equal(e.path, element.Array) && e.value == unstable.Array:
				at = i
			case e.kind == unstable.KeyValue &&
				(slices.Equal(e.path, element.Array) || startsWith(element.Array, e.path)):
				return "", d.refusal(e, "is not an array that can be edited line by line")
			case e.kind == unstable.Table && slices.Equal(e.path, element.Array):
				return "", d.refusal(e, "is a table, and not an array of tables")
			case e.kind == unstable.ArrayTable && startsWith(element.Array, e.path):
				return "", d.refusal(e, "is an array of tables")
			}
		}
		if at >= 0 {
			inline[at] += inlineTable(element.Keys) + ", "
			continue
		}
		end += "[[" + dotted(element.Array) + "]]\n"
		for _, s := range element.Keys {
			end += line("  ", s.path(), s.Value)
		}
	}
	for at, added := range inline {
		e := d.entries[at]
		value := d.text[e.keyEnd:e.end]
		value = bytes.TrimRight(value[bytes.IndexByte(value, '[')+1:], "\r\n")
		*edits = append(*edits, d.replace(e, "["+added+strings.ReplaceAll(string(value), "\r\n", "\n")))
	}
	return end, nil
}

func (d *Document) refusal(e entry, why string) error {
	return fmt.Errorf("line %d: %s %s", 1+bytes.Count(d.text[:e.start], []byte("\n")), dotted(e.path), why)
}

// tables returns the lines of settings in tables of their own.
func tables(settings []Setting) string {
	var b strings.Builder
	for i, s := range settings {
		if !slices.ContainsFunc(settings[:i], func(o Setting) bool { return slices.Equal(o.Table, s.Table) }) {
			b.WriteString("[" + dotted(s.Table) + "]\n")
			for _, o := range settings[i:] {
				if slices.Equal(o.Table, s.Table) {
					b.WriteString(line("  ", []string{o.Key}, o.Value))
				}
			}
		}
	}
	return b.String()
}

// Lines returns the settings and elements as a document of their own.
func Lines(settings []Setting, elements []Element) string {
	edits, _ := new(Document).Edits(settings, elements) // an empty document can be edited
	var b strings.Builder
	for _, e := range edits {
		b.WriteString(e.Lines)
	}
	return b.String()
}

// startsWith reports whether a path begins with another, shorter one.
func startsWith(path, shorter []string) bool {
	return len(path) > len(shorter) && slices.Equal(path[:len(shorter)], shorter)
}

func line(indent string, path []string, value any) string {
	return indent + dotted(path) + " = " + valueText(value) + "\n"
}

func inlineTable(settings []Setting) string {
	var parts []string
	for _, s := range settings {
		parts = append(parts, dotted([]string{s.Key})+" = "+valueText(s.Value))
	}
	return "{ " + strings.Join(parts, ", ") + " }"
}

// dotted returns a path as TOML writes it.
func dotted(path []string) string {
	var parts []string
	for _, key := range path {
		text, _ := toml.Marshal(map[string]any{key: true})
		parts = append(parts, strings.TrimSuffix(string(text), " = true\n"))
	}
	return strings.Join(parts, ".")
}

// valueText returns a value as TOML writes it, on one line.
func valueText(value any) string {
	text, err := toml.Marshal(map[string]any{"v": value})
	if err != nil {
		return fmt.Sprint(err) // no value of a document, and no value of ours
	}
	return strings.TrimSuffix(strings.TrimPrefix(string(text), "v = "), "\n")
}
