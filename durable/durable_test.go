package durable

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path+temporary, []byte("left by a crash, and longer than the others"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"first", "second", ""} {
		if err := Replace(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		info, _ := os.Stat(path)
		if err != nil || string(b) != text || info.Mode().Perm() != 0o600 {
			t.Errorf("got %q, mode %v, %v; want %q, mode 0600", b, info.Mode(), err, text)
		}
	}
	alone(t, filepath.Dir(path), "file")
	if err := Replace(filepath.Join(path, "below a file"), nil); err == nil {
		t.Error("replace a file below a file: want an error")
	}
}

func TestPublishAndDiscard(t *testing.T) {
	dir := t.TempDir()
	name, other := filepath.Join(dir, "name"), filepath.Join(dir, "other")
	for range 2 {
		if err := os.MkdirAll(filepath.Join(other, "below"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := Publish(other, name); err != nil {
			t.Fatal(err)
		}
		alone(t, dir, "name")
		if err := os.MkdirAll(filepath.Join(other, "left"), 0o700); err != nil { // by a crash
			t.Fatal(err)
		}
		if err := Discard(name, other); err != nil {
			t.Fatal(err)
		}
		alone(t, dir)
	}
	if err := Discard(name, other); err != nil {
		t.Error(err)
	}
	if err := Publish(other, name); err == nil {
		t.Error("publish a directory that does not exist: want an error")
	}
}

func TestPublishFile(t *testing.T) {
	dir := t.TempDir()
	name, other := filepath.Join(dir, "name"), filepath.Join(dir, "other")
	for _, text := range []string{"first", "second"} {
		if err := os.WriteFile(other, []byte(text), 0o400); err != nil {
			t.Fatal(err)
		}
		if err := Publish(other, name); err != nil {
			t.Fatal(err)
		}
		alone(t, dir, "name")
		if b, err := os.ReadFile(name); err != nil || string(b) != text {
			t.Errorf("got %q, %v; want %q", b, err, text)
		}
	}
}

func TestMkdirAllAndSync(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b", "c")
	for range 2 {
		if err := MkdirAll(path); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("got %v, %v; want a directory of mode 0700", info, err)
		}
	}
	if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := MkdirAll(filepath.Join(path, "file", "d")); err == nil {
		t.Error("make a directory below a file: want an error")
	}
	for _, sync := range []func(string) error{SyncTree, SyncFiles} {
		if err := errors.Join(sync(dir), sync(path)); err != nil {
			t.Error(err)
		}
		if err := sync(filepath.Join(dir, "none")); err == nil {
			t.Error("sync a directory that does not exist: want an error")
		}
	}
}

// alone checks that a directory has these entries and no others.
func alone(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != len(want) {
		t.Fatalf("got %v, %v; want %q", entries, err, want)
	}
	for i, entry := range entries {
		if entry.Name() != want[i] {
			t.Errorf("got %s, want %s", entry.Name(), want[i])
		}
	}
}
