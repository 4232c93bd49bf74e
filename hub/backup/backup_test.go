package backup_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/hub/backup"
	"lighter/hub/catalog"
	"lighter/hub/rootdir"
	"lighter/wire"
)

// newRoot makes the directory of a hub without images, which has a second domain.
func newRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, domain := range []string{wire.DefaultDomain, "team"} {
		dir := rootdir.Domain(root, domain)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		c, err := catalog.Open(t.Context(), catalog.Place{Source: rootdir.Catalog(dir)})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.Close(), rootdir.WriteKey(rootdir.Key(dir), newKey())); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// newKey returns a key file with a key that no other has.
func newKey() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte(rand.Text())})
}

func silent(wire.Progress) {}

func makeBackup(t *testing.T, root, dir string) {
	t.Helper()
	if _, err := backup.Make(t.Context(), root, dir, silent); err != nil {
		t.Fatal(err)
	}
}

// write makes a file in a directory.
func write(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Restore makes the catalogs and keys of all domains in a new directory. It refuses a directory
// that is not empty, and an incomplete backup.
func TestRestore(t *testing.T) {
	root, dir, restored := newRoot(t), filepath.Join(t.TempDir(), "backup"), filepath.Join(t.TempDir(), "restored")
	makeBackup(t, root, dir)
	if err := backup.Restore(t.Context(), dir, restored); err != nil {
		t.Fatal(err)
	}
	for _, domain := range []string{wire.DefaultDomain, "team"} {
		want, wantErr := os.ReadFile(rootdir.Key(rootdir.Domain(root, domain)))
		key, err := os.ReadFile(rootdir.Key(rootdir.Domain(restored, domain)))
		if err := errors.Join(err, wantErr); err != nil || !bytes.Equal(key, want) {
			t.Errorf("domain %s has the key %q (%v), want %q", domain, key, err, want)
		}
		c, err := catalog.Attach(t.Context(), rootdir.Catalog(rootdir.Domain(restored, domain)))
		if err != nil {
			t.Fatal(err)
		}
		if held, err := c.Claims.IsHeld(t.Context()); err != nil || held {
			t.Errorf("the restored catalog of domain %s has a hold: %t, %v, want none", domain, held, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := backup.Restore(t.Context(), dir, restored); err == nil {
		t.Error("a backup was restored into a directory that is not empty")
	}
	if err := os.Remove(filepath.Join(dir, "backup.json")); err != nil {
		t.Fatal(err)
	}
	if err := backup.Restore(t.Context(), dir, t.TempDir()); err == nil {
		t.Error("an incomplete backup was restored")
	}
}

// A backup refuses directories that overlap the hub's, and directories with files that are not a
// backup's. So it deletes only files of an earlier backup.
func TestBackupIntoAnotherDirectory(t *testing.T) {
	root, another, dir := newRoot(t), newRoot(t), t.TempDir()
	for _, hub := range []string{root, another} {
		write(t, hub, rootdir.LockName)
	}
	link, home := filepath.Join(dir, "link"), filepath.Join(dir, "home")
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(home, "objects"), "thesis")
	write(t, home, "notes")
	for _, to := range []string{root, link, filepath.Join(root, "backup"), filepath.Dir(root), another, home} {
		_, err := backup.Make(t.Context(), root, to, silent)
		if err == nil || !strings.Contains(err.Error(), "choose") {
			t.Errorf("a backup into %s: %v, want an error", to, err)
		}
	}
	if _, err := os.Stat(filepath.Join(home, "objects", "thesis")); err != nil {
		t.Error(err)
	}
	disk := filepath.Join(dir, "disk")
	if err := os.MkdirAll(filepath.Join(disk, "lost+found"), 0o755); err != nil {
		t.Fatal(err)
	}
	makeBackup(t, root, disk)
	write(t, filepath.Join(disk, "objects", "packs"), "unknown")
	makeBackup(t, root, disk)
	if _, err := os.Stat(filepath.Join(disk, "objects", "packs", "unknown")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an object that the catalog does not name is still in the backup (%v)", err)
	}
}

// A backup of one hub never replaces that of another hub. The hub itself may get new keys, or be
// restored from the backup.
func TestBackupOfAnotherHub(t *testing.T) {
	root, another, dir := newRoot(t), newRoot(t), filepath.Join(t.TempDir(), "backup")
	refuse := func(what, reason string) {
		t.Helper()
		before := readAll(t, dir)
		_, err := backup.Make(t.Context(), another, dir, silent)
		if err == nil || !strings.Contains(err.Error(), reason) || strings.Contains(err.Error(), "\n") {
			t.Errorf("another hub's backup replaced %s: %v, want one line with %q", what, err, reason)
		}
		if readAll(t, dir) != before {
			t.Errorf("another hub's backup changed %s, although it was refused (%v)", what, err)
		}
	}
	makeBackup(t, root, dir)
	refuse("a backup", "has a backup of the hub in "+root+", made 20")

	restored := filepath.Join(t.TempDir(), "restored")
	if err := backup.Restore(t.Context(), dir, restored); err != nil {
		t.Fatal(err)
	}
	makeBackup(t, restored, dir)
	if err := rootdir.WriteKey(rootdir.Key(root), newKey()); err != nil {
		t.Fatal(err)
	}
	makeBackup(t, root, dir)

	// Backups of older hubs have no identity.
	file := filepath.Join(dir, "backup.json")
	if err := os.WriteFile(file, []byte(`{"time":"2026-01-02T03:04:05Z","objects":1,"copied":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	refuse("an older backup", "has a backup of another hub, made 2026-01-02T03:04:05Z")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	refuse("an incomplete backup", "has a backup of another hub, which")
	added := append(newKey(), readFile(t, rootdir.Key(root))...)
	if err := rootdir.WriteKey(rootdir.Key(root), added); err != nil {
		t.Fatal(err)
	}
	makeBackup(t, root, dir)
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// readAll returns the paths and contents of the files below a directory.
func readAll(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			fmt.Fprintf(&all, "%s %x\n", path, readFile(t, path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// WhileHeld fails if its hold ends before the copy does, or if there is no catalog.
func TestHoldIsLost(t *testing.T) {
	place := catalog.Place{Source: rootdir.Catalog(newRoot(t))}
	catalogs := map[string]catalog.Place{wire.DefaultDomain: place}
	open := func() *catalog.Catalog {
		t.Helper()
		c, err := catalog.AttachAt(t.Context(), place)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	wrong := errors.New("it has failed")
	err := backup.WhileHeld(t.Context(), catalogs, func(ctx context.Context) error {
		c := open()
		defer c.Close()
		if held, err := c.Claims.IsHeld(ctx); err != nil || !held {
			t.Errorf("during the copy the catalog has a hold: %t, %v, want one", held, err)
		}
		return wrong
	})
	if !errors.Is(err, wrong) {
		t.Errorf("error %v, want the one of the copy", err)
	}
	err = backup.WhileHeld(t.Context(), catalogs, func(ctx context.Context) error {
		c := open()
		return errors.Join(c.Disown(ctx), c.Close())
	})
	if err == nil || !strings.Contains(err.Error(), "may have deleted") {
		t.Errorf("a copy whose hold has ended: %v, want an error", err)
	}
	c := open()
	if held, err := c.Claims.IsHeld(t.Context()); err != nil || held {
		t.Errorf("after the copy the catalog has a hold: %t, %v, want none", held, err)
	}
	// The hold of another backup does not prevent this one.
	if err := c.Claims.Hold(t.Context(), "another backup", time.Hour); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := backup.WhileHeld(t.Context(), catalogs, func(context.Context) error { return nil }); err != nil {
		t.Errorf("while another backup has a hold: %v", err)
	}
	none := map[string]catalog.Place{"none": {Source: filepath.Join(t.TempDir(), "none")}}
	err = backup.WhileHeld(t.Context(), none, func(context.Context) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "domain none") {
		t.Errorf("held the objects of a hub that does not exist: %v, want an error", err)
	}
}
