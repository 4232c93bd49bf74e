package hub_test

import (
	"errors"
	"testing"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
	"lighter/wire"
)

// While the hub ingests an image, it says when the image will be ready, by what is still to be
// read. It says nothing about images that are ready, unknown, or wait for something else.
func TestSoon(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar))
	held, release := r.holdBlobs(t)
	manifest := digest.FromBytes(r.manifest).String()
	unknown := func(when, manifest string) {
		t.Helper()
		if soon, err := h.client.Soon(t.Context(), manifest); !errors.Is(err, chunk.ErrNotFound) {
			t.Errorf("%s: %+v, %v, want not found", when, soon, err)
		}
	}
	unknown("before it is added", manifest)
	done := h.adding(wire.Add{Source: r.source(), Name: "a:1"})
	awaitHeld(t, held)
	soon, err := h.client.Soon(t.Context(), manifest)
	if err != nil {
		t.Fatal(err)
	}
	size := int64(len(gzipped(lowerTar)))
	if soon.Bytes < size || soon.Bytes > size+2000 || soon.Seconds < 0.5 || soon.Seconds > 1 {
		t.Errorf("it is ready in %f s, with %d bytes; want 0.5 to 1 s, and %d bytes with those of the config",
			soon.Seconds, soon.Bytes, size)
	}
	jobs, err := h.client.Jobs(t.Context(), false)
	if err != nil || len(jobs) != 1 {
		t.Fatalf("jobs %+v, %v, want one", jobs, err)
	}
	if _, err := h.client.PauseJob(t.Context(), jobs[0].N); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("the client of a paused job got no error")
	}
	unknown("while its job is paused", manifest)
	release()
	if _, err := h.client.RetryJob(t.Context(), jobs[0].N); err != nil {
		t.Fatal(err)
	}
	h.idle()
	h.wantReady("a:1", r.manifest)
	unknown("when it is ready", manifest)
	unknown("no digest", "sha256:ab")
}
