package durable

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The next start reads what was saved. A file that cannot be read is reported until it is removed.
func TestState(t *testing.T) {
	file := StateFile{Path: filepath.Join(t.TempDir(), "names.json"), Name: "the list of names",
		Broken: "nothing is removed while it exists"}
	open := func(want []string, incomplete bool) (*State[[]string], *Leftovers) {
		t.Helper()
		var left Leftovers
		s, names := OpenState[[]string](file, &left)
		if !slices.Equal(names, want) || s.Incomplete() != incomplete {
			t.Errorf("open: got %q, incomplete %t; want %q, %t", names, s.Incomplete(), want, incomplete)
		}
		return s, &left
	}
	s, left := open(nil, false)
	if err := s.Save([]string{"a", "b"}); err != nil || len(left.List()) != 0 {
		t.Fatalf("save: %v, leftovers %v", err, left.List())
	}
	open([]string{"a", "b"}, false)

	// A part of the value that could be read is not used.
	if err := os.WriteFile(file.Path, []byte(`["a", 2]`), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // later processes report the damage, too
		s, left = open(nil, true)
		if all := left.List(); len(all) != 1 || all[0].Path != file.Path+brokenSuffix ||
			all[0].Cause != "the list of names cannot be read: nothing is removed while it exists" {
			t.Errorf("a damaged file: got leftovers %v, want the renamed file", all)
		}
		if err := s.Save([]string{"c"}); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(file.Path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(file.Path + brokenSuffix); err != nil {
		t.Fatal(err)
	}

	// A state that cannot be saved keeps the old file, and is a leftover until it is saved.
	s, left = open(nil, false)
	if err := s.Save([]string{"d"}); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file.Path+temporary, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(nil); err == nil || !strings.HasPrefix(err.Error(), "save the list of names: ") ||
		len(left.List()) != 1 {
		t.Errorf("a state that cannot be saved: got %v and leftovers %v, want an error and one leftover",
			err, left.List())
	}
	open([]string{"d"}, false)
	if err := os.Remove(file.Path + temporary); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(nil); err != nil || len(left.List()) != 0 {
		t.Errorf("save again: %v, leftovers %v", err, left.List())
	}
}
