package hub_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"lighter/hub"
	"lighter/wire"
)

// While a hub is copied with other tools, its processes delete neither objects nor blobs, whatever
// is removed.
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
	err := hub.WhileHeld(t.Context(), h.config, func(ctx context.Context) error {
		h.remove("goes:1")
		time.Sleep(2 * time.Millisecond) // so that the last touch is at least a millisecond before the run
		if err := collect(ctx); err != nil {
			return err
		}
		now := slices.Concat(files(t, objectsDir(h.config)), h.registryFiles("/blobs/sha256/"))
		if !slices.Equal(now, before) {
			t.Errorf("during a copy, there are\n%v\nof\n%v", now, before)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	h.collectBlobs()
	if now := h.registryFiles("/blobs/sha256/"); !slices.Equal(now, stays) {
		t.Errorf("afterwards, there are\n%v\nwant\n%v", now, stays)
	}
}

// A copy that loses the right to hold the hub's objects fails. It also fails if there is no
// catalog.
func TestHoldIsLost(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	wrong := errors.New("it has failed")
	fail := func(context.Context) error { return wrong }
	if err := hub.WhileHeld(t.Context(), h.config, fail); !errors.Is(err, wrong) {
		t.Errorf("error %v, want the one of the copy", err)
	}
	err := hub.WhileHeld(t.Context(), h.config, func(ctx context.Context) error { return h.Catalog().Disown(ctx) })
	if err == nil || !strings.Contains(err.Error(), "may have deleted") {
		t.Errorf("a copy whose lease has ended: %v, want an error", err)
	}
	empty := hub.DefaultConfig()
	empty.Root = t.TempDir()
	if err := hub.WhileHeld(t.Context(), empty, func(context.Context) error { return nil }); err == nil {
		t.Error("held the objects of a hub that does not exist")
	}
}
