package direct

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/registries"
	"lighter/store"
	"lighter/test/testkit/layout"
)

// An image is not claimed if its registry cannot send ranges, also if its tables could be read:
// reads would fail.
func TestNoRanges(t *testing.T) {
	dir := lazyImage(t, "a")
	r := startRegistry(t, dir)
	r.whole = true
	m := r.open(t)
	_, err := m.Answerer("tables").Answer(t.Context(), r.request(t, dir, "team/a"))
	if !errors.Is(err, chunk.ErrNotFound) || !strings.Contains(err.Error(), "ignores ranges") {
		t.Errorf("error %v, want that the image is pulled as usual, and why", err)
	}
	manifest, err := layout.Manifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	from, err := m.open(strings.TrimPrefix(r.URL, "http://") + "/team/a")
	if err != nil {
		t.Fatal(err)
	}
	for ignores, want := range map[bool]bool{true: false, false: true} {
		r.with(func() { r.whole = ignores })
		if err := checkRanges(t.Context(), from, manifest.Layers); (err == nil) != want {
			t.Errorf("ranges are ignored: %t; error %v", ignores, err)
		}
	}
}

// Units are read with the login that the configuration has when they are read: after it was changed
// while the image is mounted, and after a restart.
func TestLoginOfReaders(t *testing.T) {
	dir := lazyImage(t, "a")
	r := startRegistry(t, dir)
	r.login = "node:old"
	file := filepath.Join(t.TempDir(), "password")
	write := func(password string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("old")
	root := t.TempDir()
	table := registries.Registry{Username: "node", PasswordFile: file}
	m := r.openAt(t, root, table)
	answer, err := m.Answerer("tables").Answer(t.Context(), r.request(t, dir, "team/a"))
	if err != nil {
		t.Fatal(err)
	}
	unit := chunk.Unit{Pack: m.kept.trees[answer.Image.Statement.Tree].layers[0].pack}
	read := func(m *Images) error {
		return m.Source(&hubs{}).FetchUnit(t.Context(), unit, func(a store.Answer) error {
			_, err := io.Copy(io.Discard, a.Body)
			return err
		})
	}
	if err := read(m); err != nil {
		t.Fatal(err)
	}
	write("longer")
	r.with(func() { r.login = "node:longer" })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for err = read(m); err != nil && ctx.Err() == nil; err = read(m) {
		time.Sleep(100 * time.Millisecond) // the file is looked at every 2 s
	}
	if err != nil {
		t.Errorf("after the login was changed: %v", err)
	}
	write("a third one")
	r.with(func() { r.login = "node:a third one" })
	if err := read(r.openAt(t, root, table)); err != nil {
		t.Errorf("after a restart with another login: %v", err)
	}
	r.with(func() { r.login = "node:unknown" })
	err = read(r.openAt(t, root, table))
	if err == nil || strings.Contains(err.Error(), "a third one") {
		t.Errorf("with a wrong login: %v, want an error without the password", err)
	}
}
