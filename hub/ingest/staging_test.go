package ingest

import (
	"crypto/ed25519"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"lighter/format/tree"
	"lighter/hub/encoder"
	"lighter/hub/objects"
	"lighter/hub/oci"
	"lighter/hub/publish"
	"lighter/test/testkit/catalogtest"
)

// A pack that could not be synced keeps its image from being published.
func TestUnsyncedPackIsNotPublished(t *testing.T) {
	dir := t.TempDir()
	scratch := filepath.Join(dir, "scratch")
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		t.Fatal(err)
	}
	c := catalogtest.Open(t, filepath.Join(dir, "catalog.db"))
	o, err := objects.Open(t.Context(), "file://"+filepath.Join(dir, "objects"))
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	log := slog.New(slog.DiscardHandler)
	p := publish.New(c, o, scratch, "process", log)
	keys := []ed25519.PrivateKey{make(ed25519.PrivateKey, ed25519.PrivateKeySize)}
	trees := NewTrees(t.Context(), c, o, p, tree.Limits{Entries: 1000, Bytes: 1 << 20}, NewBounds(), keys, log)
	i := New(c, p, encoder.NewPool(1), trees, log)
	staging, err := newStaging(p, c)
	if err != nil {
		t.Fatal(err)
	}
	if err := staging.addUnit([]byte("unit"), 4, nil); err != nil {
		t.Fatal(err)
	}
	written := staging.file
	if staging.file, err = os.OpenFile("/dev/null", os.O_WRONLY, 0); err != nil { // cannot be synced
		t.Fatal(err)
	}
	if err := errors.Join(staging.finish(), written.Close()); err != nil {
		t.Fatal(err)
	}
	one := &ingestion{Ingester: i, staging: staging, image: &oci.Image{Layers: []oci.Layer{{Chain: "c"}}}}
	if err := one.publish(t.Context(), &madeTree{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("publish returned %v, want EINVAL", err)
	}
	if err := staging.close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
		t.Errorf("scratch directory has %v (%v), want it empty", left, err)
	}
}
