package blobs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/layerblob"
)

var layerBytes = bytes.Repeat([]byte("layer "), 200_000)

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return algorithm + hex.EncodeToString(sum[:])
}

var testName = name{int64(len(layerBytes)), manifestDigest, digestOf(layerBytes)}

// answer is one answer of a fakeHub: the bytes from an offset on, then an error.
type answer struct {
	body []byte
	err  error // after the body; nil: io.EOF
	bad  error // instead of an answer
	all  bool  // the registry does not know ranges
}

// fakeHub gives its answers one after the other; the last one again and again.
type fakeHub struct {
	mu       sync.Mutex
	answers  []answer
	requests []string // REPOSITORY@OFFSET
	image    func(manifest string) (*index.ImageStatement, error)
	begun    func() // called at each request
}

func (h *fakeHub) Image(_ context.Context, manifest string) (*index.ImageStatement, error) {
	if h.image != nil {
		return h.image(manifest)
	}
	return &index.ImageStatement{Manifest: manifest, Repositories: []string{"registry.example.org:5000/a/b"}}, nil
}

func (h *fakeHub) RegistryBlob(_ context.Context, repository, digest string, from func() int64,
	take func(at int64, body io.Reader) error) error {
	h.mu.Lock()
	if digest != testName.layer {
		panic("another layer is requested")
	}
	a, at := h.answers[0], from()
	if len(h.answers) > 1 {
		h.answers = h.answers[1:]
	}
	h.requests = append(h.requests, fmt.Sprintf("%s@%d", repository, at))
	h.mu.Unlock()
	if h.begun != nil {
		h.begun()
	}
	if a.bad != nil {
		return a.bad
	}
	if a.all {
		at = 0
	}
	body := io.Reader(bytes.NewReader(a.body[min(at, int64(len(a.body))):]))
	if a.err != nil {
		body = io.MultiReader(body, failing{a.err})
	}
	return take(at, body)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// newTestBlobs returns Blobs whose content store has a link for testName.
func newTestBlobs(t *testing.T, hub *fakeHub) (*Blobs, contents) {
	t.Helper()
	root := t.TempDir()
	in := contents(t.TempDir())
	if err := os.MkdirAll(in.blobs(), 0o755); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	b, err := New(Config{Root: root, Layers: &layerblob.Reader{Statements: hub, Hub: hub, Log: log},
		Leftovers: &durable.Leftovers{}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.keepWhere(in), in.link(testName, mountPoint(root))); err != nil {
		t.Fatal(err)
	}
	return b, in
}

// checkLeft checks that no unfinished file is left.
func checkLeft(t *testing.T, in contents) {
	t.Helper()
	if left, err := os.ReadDir(in.scratch()); err != nil || len(left) > 0 {
		t.Errorf("unfinished files: %v, %v; want none", left, err)
	}
}

// A layer arrives whole and right whatever fails on the way, as long as more bytes arrive. What has
// arrived is not requested again, unless it was wrong.
func TestFetch(t *testing.T) {
	half := layerBytes[:len(layerBytes)/2]
	cut := errors.New("connection reset")
	wrong := append(bytes.Clone(layerBytes[:len(layerBytes)-1]), '!')
	const repository = "registry.example.org_5000/a/b@"
	for what, c := range map[string]struct {
		answers  []answer
		requests string
	}{
		"at once":      {[]answer{{body: layerBytes}}, "0"},
		"in two parts": {[]answer{{body: half, err: cut}, {body: layerBytes}}, fmt.Sprintf("0 %d", len(half))},
		"without ranges": {[]answer{{body: half, err: cut}, {body: layerBytes, all: true}},
			fmt.Sprintf("0 %d", len(half))},
		"after wrong bytes": {[]answer{{body: wrong}, {body: layerBytes}}, "0 0"},
		"after too few":     {[]answer{{body: half}, {body: layerBytes}}, "0 0"},
		"after too many":    {[]answer{{body: append(bytes.Clone(layerBytes), 'x')}, {body: layerBytes}}, "0 0"},
		"after failures":    {[]answer{{bad: cut}, {bad: cut}, {body: layerBytes}}, "0 0 0"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hub := &fakeHub{answers: c.answers}
				b, in := newTestBlobs(t, hub)
				defer b.end()
				if err := b.ensure(t.Context(), testName); err != nil {
					t.Fatal(err)
				}
				info, err := os.Lstat(in.path(testName.layer))
				if err != nil || info.Mode() != 0o444 {
					t.Errorf("got mode %v, %v; want a file that all may read", info.Mode(), err)
				}
				if got, err := os.ReadFile(in.path(testName.layer)); err != nil || !bytes.Equal(got, layerBytes) {
					t.Errorf("got %d bytes, %v; want the layer", len(got), err)
				}
				if got := strings.ReplaceAll(strings.Join(hub.requests, " "), repository, ""); got != c.requests {
					t.Errorf("got requests from %s, want %s", got, c.requests)
				}
				checkLeft(t, in)
				if b.status.Fetched != 1 || b.status.Bytes != testName.size || b.status.Fetching != 0 {
					t.Errorf("got status %+v", b.status)
				}
			})
		})
	}
}

// A layer that cannot be fetched ends with an error that says why, and its link stays.
func TestFetchFails(t *testing.T) {
	wrong := bytes.Repeat([]byte("x"), len(layerBytes))
	says := func(s *index.ImageStatement, err error) func(string) (*index.ImageStatement, error) {
		return func(string) (*index.ImageStatement, error) { return s, err }
	}
	const attempts = 5 // of layerblob
	unknown := fmt.Errorf("no such image: %w", chunk.ErrNotFound)
	for what, c := range map[string]struct {
		hub   *fakeHub
		tries int
		words string
	}{
		"wrong bytes": {&fakeHub{answers: []answer{{body: wrong}}}, attempts, "its digest is sha256:"},
		"hub is away": {&fakeHub{answers: []answer{{bad: errors.New("connection refused")}}}, attempts, "refused"},
		"hub does not have it": {&fakeHub{answers: []answer{{bad: unknown}}}, 1,
			"get it from repository registry.example.org:5000/a/b: no such image"},
		"hub does not know the image": {&fakeHub{image: says(nil, unknown)}, 0, "no such image"},
		"no repository":               {&fakeHub{image: says(&index.ImageStatement{}, nil)}, 0, "names no repository"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, in := newTestBlobs(t, c.hub)
				defer b.end()
				err := b.ensure(t.Context(), testName)
				if err == nil || !strings.Contains(err.Error(), c.words) || len(c.hub.requests) != c.tries {
					t.Errorf("got %v after %d requests, want %q after %d", err, len(c.hub.requests), c.words, c.tries)
				}
				want := syscall.EIO
				if errors.Is(err, chunk.ErrNotFound) { // then containerd shall know that it lacks the layer
					want = syscall.ENOENT
				}
				if errno := errnoOf(t.Context(), err); errno != want || b.isGone(testName) != (want == syscall.ENOENT) {
					t.Errorf("got errno %v, given up: %t; want %v", errno, b.isGone(testName), want)
				}
				if _, _, ok := in.linked(testName.layer); !ok {
					t.Error("the link is gone without an answer of containerd")
				}
				checkLeft(t, in)
				if b.status.Failures != 1 || !strings.Contains(b.status.Failure, c.words) {
					t.Errorf("got status %+v, want the failure", b.status)
				}
			})
		})
	}
}

// A layer that containerd removes while it is fetched is not brought back.
func TestLayerIsRemovedWhileItIsFetched(t *testing.T) {
	hub := &fakeHub{answers: []answer{{body: layerBytes}}}
	b, in := newTestBlobs(t, hub)
	defer b.end()
	hub.begun = func() {
		if err := os.Remove(in.path(testName.layer)); err != nil {
			t.Error(err)
		}
	}
	err := b.ensure(t.Context(), testName)
	if !errors.Is(err, errRemoved) || errnoOf(t.Context(), err) != syscall.ENOENT {
		t.Errorf("got %v, want %v, ENOENT", err, errRemoved)
	}
	if in.exists(testName.layer) {
		t.Error("the layer is back")
	}
	checkLeft(t, in)
}

// All who wait for a layer share a fetch. It goes on when they have gone, and ends with the node.
func TestFetchIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		hub := &fakeHub{answers: []answer{{body: layerBytes}}, begun: func() { <-goOn }}
		b, in := newTestBlobs(t, hub)
		defer b.end()
		gone, leave := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				err := b.ensure(gone, testName)
				if !errors.Is(err, context.Canceled) || errnoOf(gone, err) != syscall.EINTR {
					t.Errorf("got %v, want that the wait was cancelled", err)
				}
			})
		}
		synctest.Wait()
		leave()
		group.Wait()
		for range 8 {
			group.Go(func() {
				if err := b.ensure(t.Context(), testName); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(goOn)
		group.Wait()
		if len(hub.requests) != 1 || !in.exists(testName.layer) {
			t.Errorf("got requests %v, want one", hub.requests)
		}
	})
}

// A layer for which the disk has no room fills none of it.
func TestNoRoom(t *testing.T) {
	b, in := newTestBlobs(t, &fakeHub{})
	defer b.end()
	huge := testName
	huge.size = 1 << 60
	err := b.ensure(t.Context(), huge)
	errno := errnoOf(t.Context(), err)
	if !errors.Is(err, layerblob.ErrSink) || errno != syscall.ENOSPC && errno != syscall.EIO {
		t.Errorf("got %v, errno %v; want that the machine cannot store it", err, errno)
	}
	checkLeft(t, in)
}

// Links are made once, follow the node's root, and never replace a file.
func TestLinks(t *testing.T) {
	b, in := newTestBlobs(t, &fakeHub{})
	defer b.end()
	dir := filepath.Join(t.TempDir(), "moved")
	if err := in.link(testName, dir); err != nil {
		t.Fatal(err)
	}
	if _, target, ok := in.linked(testName.layer); !ok || target != filepath.Join(dir, testName.String()) {
		t.Errorf("got a link to %q, want one in %s", target, dir)
	}
	other := name{1, manifestDigest, layerDigest}
	if err := os.WriteFile(in.path(other.layer), []byte("x"), 0o444); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/foreign", filepath.Join(in.blobs(), "foreign")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(in.link(other, dir), in.unlink(other.layer)); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(in.path(other.layer)); err != nil || string(text) != "x" {
		t.Errorf("the file has %q, %v; want it unchanged", text, err)
	}
	if all, err := in.links(); err != nil || len(all) != 1 || all[0] != testName {
		t.Errorf("got links %v, %v; want %v", all, err, testName)
	}
	if err := in.unlink(testName.layer); err != nil || in.exists(testName.layer) {
		t.Errorf("unlink: %v, and the link exists: %t", err, in.exists(testName.layer))
	}
}
