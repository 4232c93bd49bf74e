package durable

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/test/testkit/immutable"
)

// A path that cannot be removed is logged once, and listed until it is gone.
func TestLeftovers(t *testing.T) {
	var log bytes.Buffer
	l := Leftovers{Log: slog.New(slog.NewTextHandler(&log, nil))}
	dir := filepath.Join(t.TempDir(), "dir")
	below := filepath.Join(dir, "below")
	immutable.Dir(t, below)
	for range 3 {
		l.Remove(dir)
		if list := l.List(); len(list) != 1 || list[0].Path != dir || !strings.Contains(list[0].Cause, "below") {
			t.Errorf("got %+v, want one leftover", list)
		}
	}
	if n := strings.Count(log.String(), dir); n == 0 || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("want one line about %s, got\n%s", dir, log.String())
	}
	immutable.Set(t, below, false)
	l.Remove(dir)
	if list := l.List(); len(list) != 0 {
		t.Errorf("after the removal: got %+v, want none", list)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l.Note(file, errors.New("it is empty"))
	if list := l.List(); len(list) != 1 || list[0] != (Leftover{file, "it is empty"}) {
		t.Errorf("got %+v, want one leftover", list)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if list := l.List(); len(list) != 0 {
		t.Errorf("after the file is gone: got %+v, want none", list)
	}
}
