package images

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/oci"
	"lighter/hub/registry"
	"lighter/wire"
)

// An image that is added after a copy has failed does not wait for that copy.
func TestFailedCopyIsForgotten(t *testing.T) {
	ctx, log := t.Context(), slog.New(slog.DiscardHandler)
	c, err := catalog.Open(ctx, filepath.Join(t.TempDir(), "catalog.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := registry.Open(ctx, t.TempDir(), log)
	if err != nil {
		t.Fatal(err)
	}
	s := New(ctx, Config{ImageTime: time.Minute, Log: log}, c, r, nil)
	ref := wire.Ref{Repository: "a", Tag: "1"}
	manifest := registry.Manifest{MediaType: "m", Digest: "sha256:1", Bytes: []byte("{}")}
	prepared, err := s.Copies.Prepare(ref, nil, &oci.Members{Root: manifest,
		Manifests: []oci.Member{{Manifest: manifest, Wanted: true, IsImage: true}}})
	if err != nil {
		t.Fatal(err)
	}
	failed, err := s.Copies.Join(prepared)
	if err != nil {
		t.Fatal(err)
	}
	queued, err := c.Expect(ctx, ref.Name(), []catalog.Image{{Root: manifest.Digest, Digest: manifest.Digest,
		State: wire.StateQueued}})
	if err != nil || s.Copies.Of(queued[0]) != failed {
		t.Fatalf("queued %+v, %v, want it to wait for the copy", queued, err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.CopyFailed(failed, errors.New("source is gone"))
	}()
	for known := true; known; {
		unlock := s.Lock(ref.Repository)
		now, err := c.Images(ctx, ref.Name())
		if err != nil {
			t.Fatal(err)
		}
		known = s.Copies.Of(queued[0]) != nil
		if isFailed := now[0].State == wire.StateFailed; isFailed == known {
			t.Errorf("the image is %s and the copy is known: %t, want both to change under one lock",
				now[0].State, known)
		}
		unlock()
	}
	<-ended
}
