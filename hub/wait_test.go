package hub_test

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/hub/catalog"
	"lighter/wire"
)

// holdBlobs makes a registry send the first half of each large blob, and the second half after
// release is called. held gets an element for each held request.
func (r *fakeRegistry) holdBlobs(t *testing.T) (held chan struct{}, release func()) {
	held, released := make(chan struct{}, 100), make(chan struct{})
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(release) // otherwise the server would not end
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

// awaitHeld waits until a request is held. After two minutes it fails the test.
func awaitHeld(t *testing.T, held <-chan struct{}) {
	t.Helper()
	select {
	case <-held:
	case <-time.After(2 * time.Minute):
		t.Fatal("no request was held within two minutes")
	}
}

// known waits until the hub has an image of that name.
func (h *testHub) known(name string) {
	h.t.Helper()
	for range 3000 {
		images, err := h.client.Images(h.t.Context(), name)
		if err != nil {
			h.t.Fatal(err)
		}
		if len(images) > 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.t.Fatalf("after 30 s, the hub has no image %s", name)
}

// isBusy reports whether a job runs, is paused, or is due within 5 s.
func isBusy(jobs []wire.Job) bool {
	return slices.ContainsFunc(jobs, func(j wire.Job) bool {
		return j.State != wire.JobQueued || time.Until(j.RunAt) <= 5*time.Second
	})
}

// idle waits until each open job of the hub is queued and not due within 5 s.
func (h *testHub) idle() {
	h.t.Helper()
	for range 3000 {
		jobs, err := h.client.Jobs(h.t.Context(), false)
		if err != nil {
			h.t.Fatal(err)
		}
		if !isBusy(jobs) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.t.Fatal("the hub still has open jobs")
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
				t.Errorf("added %+v, %v, want it ready", last, err)
			}
			waits()
		})
	}
	waiting.Wait() // all clients have received a report of progress
	release()
	all.Wait()
	for d, b := range r.blobs {
		if n := r.asked[d.String()]; n > 1 && len(b) > 10_000 {
			t.Errorf("blob %s was downloaded %d times, want once", d, n)
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
	awaitHeld(t, held)
	if err := h.client.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	// The waiting request ends at once, although the blobs are still held.
	if err := <-added; err == nil || !strings.Contains(err.Error(), "removed") {
		t.Errorf("the waiting request: %v, want an error that says removed", err)
	}
	h.idle()
	h.unchanged("after the removal", before)
	go add()
	h.known("a:1")
	release()
	if err := <-added; err != nil {
		t.Errorf("add the image again: %v", err)
	}
	h.fetchTree(h.ready("a:1").Chain)
}

// If a hub ends while it copies an image with a login, it copies the image after its restart. The
// login is not in the catalog in plain text, and is removed when the image is ready.
func TestHubEndsWhileItCopies(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar))
	r.user, r.password = "alice", "a secret word"
	held, release := r.holdBlobs(t)
	ended := make(chan error, 1)
	go func() {
		_, err := h.add(wire.Add{Source: r.source(), Name: "a:1", Username: r.user, Password: r.password})
		ended <- err
	}()
	awaitHeld(t, held)
	h.stop()
	if err := <-ended; err == nil {
		t.Error("the waiting request succeeded when the hub ended, want an error")
	}
	if found := grepFiles(t, h.config.Root, r.password); found != "" {
		t.Errorf("the file %s has the password in plain text", found)
	}
	again := runHub(t, openHub(t, h.config))
	release()
	images := again.settled("a:1")
	if len(images) != 1 || images[0].State != wire.StateReady {
		t.Fatalf("after the restart: %+v, want it ready", images)
	}
	again.fetchTree(images[0].Chain)
	again.idle()
	jobs, err := again.Catalog().Jobs.List(t.Context(), true, 10)
	jobs = slices.DeleteFunc(jobs, func(j catalog.Job) bool { return j.Kind != "image" })
	if err != nil || len(jobs) != 1 || len(jobs[0].Secret) != 0 {
		t.Errorf("ended jobs %+v, %v, want one without a login", jobs, err)
	}
}

// grepFiles returns the path of a file below dir that contains text, or "" if there is none.
func grepFiles(t *testing.T, dir, text string) string {
	t.Helper()
	for _, name := range files(t, dir) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte(text)) {
			return name
		}
	}
	return ""
}
