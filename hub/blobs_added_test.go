package hub_test

import (
	"testing"

	"lighter/hub"
	"lighter/hub/report"
	"lighter/wire"
)

// An image that is added while a collection runs keeps all of its blobs, although no image names
// them when the collection marks: those that it finds stored, also long ago, and those that it
// stores.
func TestImageAddedDuringCollection(t *testing.T) {
	t.Parallel()
	for _, keep := range []string{"always", "until-upstream"} {
		t.Run(keep, func(t *testing.T) {
			t.Parallel()
			r := startRegistry(t, image(lowerTar, upperTar))
			h := startHub(t, func(c *hub.Config) { c.KeepBlobs = keep })
			_, config, parts := image(lowerTar, upperTar).build()
			h.pushBlob("old", parts[0])
			h.pushBlob("old", config)
			h.execute(`UPDATE registry_blobs SET touched = 1`)
			h.Blobs().Marked = func() { h.added(wire.Add{Source: r.source(), Name: "a:1"}) }
			if _, err := h.Blobs().Collect(t.Context(), &report.Progress{}); err != nil {
				t.Fatal(err)
			}
			h.Blobs().Marked = nil
			h.idle() // layouts use the scratch directory, too
			if problems := h.problems("a:1"); problems != "" {
				t.Errorf("verify a:1: %s", problems)
			}
		})
	}
}

// Between the blobs of an added image and its manifest, a whole collection may run.
func TestCollectionDuringAdd(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, image(lowerTar, startsTar(10)))
	h := startHub(t, func(c *hub.Config) { c.KeepBlobs = "always" })
	_, config, parts := image(lowerTar, startsTar(10)).build()
	h.pushBlob("old", parts[0])
	h.pushBlob("old", config)
	h.pushBlob("old", []byte("nothing names it"))
	h.execute(`UPDATE registry_blobs SET touched = 1`)
	held, release := r.holdBlobs(t)
	done := make(chan error, 1)
	go func() {
		_, err := h.add(wire.Add{Source: r.source(), Name: "a:1"})
		done <- err
	}()
	awaitHeld(t, held)
	result, err := h.Blobs().Collect(t.Context(), &report.Progress{})
	if err != nil {
		t.Fatal(err)
	}
	if result.Blobs != 1 {
		t.Errorf("collected %+v, want the blob that the image does not have", result)
	}
	release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	h.idle()
	if problems := h.problems("a:1"); problems != "" {
		t.Errorf("verify a:1: %s", problems)
	}
}
