package hub_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"lighter/hub"
	"lighter/hub/backup"
	"lighter/wire"
)

// whileHeld calls fn during a hold of all domains of a hub.
func whileHeld(t *testing.T, c hub.Config, fn func(ctx context.Context) error) error {
	t.Helper()
	catalogs, err := c.Catalogs()
	if err != nil {
		t.Fatal(err)
	}
	return backup.WhileHeld(t.Context(), catalogs, fn)
}

// During a hold, a hub deletes neither objects nor blobs, also if an image is removed and
// collected.
func TestNothingIsDeletedWhileHeld(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.laid("stays:1", image(layer(1)))
	h.idle()
	stays := h.registryFiles("/blobs/sha256/")
	h.laid("goes:1", image(layer(2)))
	h.idle()
	before := slices.Concat(files(t, objectsDir(h.config)), h.registryFiles("/blobs/sha256/"))
	h.Blobs().Delay = 0
	collect := func(ctx context.Context) error {
		h.Collector().Delay = 0
		j, err := h.Collector().Start(ctx)
		if err == nil {
			_, err = h.Collector().Await(ctx, j.N, func(wire.Progress) error { return nil })
		}
		return err
	}
	err := whileHeld(t, h.config, func(ctx context.Context) error {
		h.remove("goes:1")
		time.Sleep(2 * time.Millisecond) // so that the last touch is at least a millisecond before the run
		if err := collect(ctx); err != nil {
			return err
		}
		now := slices.Concat(files(t, objectsDir(h.config)), h.registryFiles("/blobs/sha256/"))
		if !slices.Equal(now, before) {
			t.Errorf("during a hold, there are\n%v\nwant\n%v", now, before)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	h.collectBlobs()
	if now := h.registryFiles("/blobs/sha256/"); !slices.Equal(now, stays) {
		t.Errorf("after the hold and a collection, there are\n%v\nwant\n%v", now, stays)
	}
}
