package objects_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"lighter/format/chunk"
	"lighter/hub/objects"
)

// wantUnavailable fails the test unless the methods about objects return ErrUnavailable, and Ping
// an error.
func wantUnavailable(t *testing.T, s *objects.Store) {
	t.Helper()
	id := chunk.Sum([]byte("x"))
	staged := filepath.Join(t.TempDir(), "staged")
	if err := os.WriteFile(staged, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, opened := s.Open(t.Context(), objects.IndexKey(id))
	_, size := s.Size(t.Context(), objects.LocationsKey(id))
	_, unit := s.OpenUnit(t.Context(), chunk.Unit{Pack: id})
	listed := error(nil)
	for _, err := range s.List(t.Context(), "") {
		listed = err
	}
	published := s.Publish(t.Context(), []objects.Staged{{Key: objects.PackKey(id), Path: staged}})
	for what, err := range map[string]error{"Open": opened, "Size": size, "OpenUnit": unit, "List": listed,
		"Publish": published} {
		if !errors.Is(err, objects.ErrUnavailable) || errors.Is(err, objects.ErrNotFound) {
			t.Errorf("%s: error %v, want ErrUnavailable and not ErrNotFound", what, err)
		}
	}
	if s.Ping(t.Context()) == nil {
		t.Error("Ping: got no error, want one")
	}
}

// If the file system of the bucket's directory is unmounted, errors do not say that objects are
// missing, and no object is written below the mount point. When the file system is back, it is used
// again.
func TestStoreWithoutItsFileSystem(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "objects")
	s, err := objects.Open(t.Context(), "file://"+dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Size(t.Context(), objects.LayerKey("sha256:aa")); !errors.Is(err, objects.ErrNotFound) {
		t.Errorf("an unknown object: error %v, want ErrNotFound", err)
	}
	if err := errors.Join(os.Rename(dir, dir+".away"), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	wantUnavailable(t, s)
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
		t.Fatalf("cannot put the directory back: %v; want the mount point empty", err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := s.Size(t.Context(), objects.LayerKey("sha256:aa")); !errors.Is(err, objects.ErrNotFound) {
		t.Errorf("an unknown object, with the file system again: error %v, want ErrNotFound", err)
	}
}
