package state

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

// What cannot be removed is logged once, and listed until it is gone.
func TestLeftovers(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	var l Leftovers
	dir := filepath.Join(t.TempDir(), "dir")
	below := filepath.Join(dir, "below")
	immutable.Dir(t, below)
	for range 3 {
		l.Remove(dir)
		if left := l.List(); len(left) != 1 || left[0].Path != dir || !strings.Contains(left[0].Cause, "below") {
			t.Errorf("left: %+v", left)
		}
	}
	if n := strings.Count(log.String(), dir); n == 0 || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("the log says\n%s", log.String())
	}
	immutable.Set(t, below, false)
	l.Remove(dir)
	if left := l.List(); len(left) != 0 {
		t.Errorf("left when it is removed: %+v", left)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l.Note(file, errors.New("it says nothing"))
	if left := l.List(); len(left) != 1 || left[0] != (Leftover{file, "it says nothing"}) {
		t.Errorf("left: %+v", left)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if left := l.List(); len(left) != 0 {
		t.Errorf("left when somebody has removed it: %+v", left)
	}
}
