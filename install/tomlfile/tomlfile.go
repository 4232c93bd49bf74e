// Package tomlfile changes the TOML configuration of another program. It puts settings between
// marks (package marks) and keeps every other byte (package tomltext). It only plans the changes:
// package install carries them out.
package tomlfile

import (
	"bytes"
	"errors"
	"path/filepath"

	"lighter/install"
	"lighter/install/marks"
	"lighter/install/tomltext"
)

// File is a configuration file as it was read. It may not exist.
type File struct {
	install.Text
	Undone marks.Undone       // the text without our lines
	Doc    *tomltext.Document // the same, parsed
	marker marks.Marker
}

// Read reads a file. If it cannot be edited, the error is an *install.Refused.
func Read(path string, marker marks.Marker) (File, error) {
	text, err := install.Read(path)
	if err != nil {
		return File{}, err
	}
	f := File{Text: text, marker: marker}
	if f.Undone, err = marker.Undo(f.Bytes); err != nil {
		return File{}, f.refuse(err.Error())
	}
	if f.Doc, err = tomltext.Parse(f.Undone.Text); err != nil {
		return File{}, f.refuse("it is no valid TOML: " + err.Error())
	}
	return f, nil
}

func (f File) refuse(why string) error { return &install.Refused{Path: f.Path, Why: why} }

// IsNew reports whether there is no file, or nothing in it but our lines.
func (f File) IsNew() bool { return f.Bytes == nil || f.Undone.Gone() }

// inNewDirectory reports whether the directory of the file is ours, too.
func (f File) inNewDirectory() bool {
	return f.Undone.Origin == marks.NothingIn || f.Bytes == nil && install.Missing(filepath.Dir(f.Path))
}

// With returns the text with the settings and additional elements in place of our previous lines.
// It checks that the text has the settings, and that they can be taken out again. If not, the
// error is an *install.Refused.
func (f File) With(settings []tomltext.Setting, elements []tomltext.Element) ([]byte, error) {
	edits, err := f.Doc.Edits(settings, elements)
	if err != nil {
		return nil, f.refuse(err.Error())
	}
	text, doc, err := f.edited(edits)
	if err != nil {
		return nil, err
	}
	for _, s := range settings {
		if !doc.Has(s) {
			return nil, f.refuse("the key " + s.Key + " cannot be set")
		}
	}
	return text, nil
}

// WithTables returns the text with lines in place of our previous ones: tables that come before
// those of the file. The checks and the error are those of With.
func (f File) WithTables(lines string) ([]byte, error) {
	at := f.Doc.FirstTable()
	text, _, err := f.edited([]marks.Edit{{At: at, Until: at, Lines: lines}})
	return text, err
}

// edited returns the text with edits between marks, and parses it.
func (f File) edited(edits []marks.Edit) ([]byte, *tomltext.Document, error) {
	origin := marks.File
	switch {
	case f.IsNew() && f.inNewDirectory():
		origin = marks.NothingIn
	case f.IsNew():
		origin = marks.Nothing
	}
	text := f.marker.Apply(f.Undone.Text, origin, edits)
	undone, err := f.marker.Undo(text)
	if err == nil && !bytes.Equal(undone.Text, f.Undone.Text) {
		err = errors.New("the change could not be undone")
	}
	if err != nil {
		return nil, nil, f.refuse(err.Error())
	}
	doc, err := tomltext.Parse(text)
	if err != nil {
		return nil, nil, f.refuse("it cannot get further keys: " + err.Error())
	}
	return text, doc, nil
}

// Change returns the changes that give the file a new text. With the text without our lines
// (Undone.Text), a file that only had our lines is removed, and none is made.
func (f File) Change(text []byte) []install.Change {
	if f.IsNew() && bytes.Equal(text, f.Undone.Text) {
		text = nil
	}
	changes := f.To(text)
	for i := range changes {
		changes[i].Directory = f.inNewDirectory()
	}
	return changes
}
