package hub_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/wire"
)

// holdBlobs makes a registry send half of each large blob, and the rest after release was called.
func (r *fakeRegistry) holdBlobs(t *testing.T) (held chan struct{}, release func()) {
	held, released := make(chan struct{}, 100), make(chan struct{})
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(release) // or the server does not end
	r.spoil = func(w http.ResponseWriter, req *http.Request, _ digest.Digest, b []byte) bool {
		if len(b) < 10_000 {
			return false
		}
		_, _ = w.Write(b[:len(b)/2])
		_ = http.NewResponseController(w).Flush()
		held <- struct{}{}
		select {
		case <-released:
		case <-req.Context().Done():
		}
		_, _ = w.Write(b[len(b)/2:])
		return true
	}
	return held, release
}

// known waits until the hub has an image of that name.
func (h *testHub) known(name string) {
	h.t.Helper()
	for range 600 {
		images, err := h.client.Images(h.t.Context(), name)
		if err != nil {
			h.t.Fatal(err)
		}
		if len(images) > 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.t.Fatalf("%s is still unknown", name)
}

func TestConcurrentAddsCopyOnce(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar, upperTar))
	_, release := r.holdBlobs(t)
	var all, waiting sync.WaitGroup
	for range 4 {
		waiting.Add(1)
		waits := sync.OnceFunc(waiting.Done)
		all.Go(func() {
			last, err := h.client.Add(t.Context(), wire.Add{Source: r.source()}, func(wire.Progress) { waits() })
			if err != nil || last.Images[0].State != wire.StateReady {
				t.Errorf("%+v, %v", last, err)
			}
			waits()
		})
	}
	waiting.Wait() // all have heard of its progress
	release()
	all.Wait()
	for d, b := range r.blobs {
		if n := r.asked[d.String()]; n > 1 && len(b) > 10_000 {
			t.Errorf("blob %s was downloaded %d times", d, n)
		}
	}
}

// An image can be removed while it is copied, and added again.
func TestRemovalDuringCopy(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar, upperTar))
	held, release := r.holdBlobs(t)
	before := h.holdings()
	added := make(chan error, 2)
	add := func() {
		_, err := h.add(wire.Add{Source: r.source(), Name: "a:1"})
		added <- err
	}
	go add()
	<-held
	if err := h.client.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	// The waiting request ends at once, although the blobs are still held.
	if err := <-added; err == nil || !strings.Contains(err.Error(), "removed") {
		t.Errorf("the waiting request: %v, want an error", err)
	}
	h.unchanged("taken away", before)
	go add()
	h.known("a:1")
	release()
	if err := <-added; err != nil {
		t.Errorf("added again: %v", err)
	}
	h.fetchTree(h.ready("a:1").Chain)
}

// A copy that the end of the hub has interrupted has failed afterwards: its password is not stored.
func TestHubEndsWhileItCopies(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar))
	held, release := r.holdBlobs(t)
	before := h.holdings()
	ended := make(chan error, 1)
	go func() {
		_, err := h.add(wire.Add{Source: r.source(), Name: "a:1"})
		ended <- err
	}()
	<-held
	again := h.restart()
	release()
	if err := <-ended; err == nil {
		t.Error("the waiting request got no answer when the hub ended")
	}
	images := again.settled("a:1")
	if len(images) != 1 || images[0].State != wire.StateFailed || !strings.Contains(images[0].Error, "again") {
		t.Errorf("%+v", images)
	}
	again.unchanged("after the restart", before)
	if last, err := again.add(wire.Add{Source: r.source(), Name: "a:1"}); err != nil ||
		last.Images[0].State != wire.StateReady {
		t.Errorf("%+v, %v", last, err)
	}
}
