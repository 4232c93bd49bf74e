package directory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/wire"
)

// fakeHub has images, and counts the requests.
type fakeHub struct {
	mu     sync.Mutex
	images []wire.Image // sorted by name
	away   error
	lists  int
	asked  int
}

func (h *fakeHub) set(away error, images ...wire.Image) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.images, h.away = images, away
}

func (h *fakeHub) Images(_ context.Context, name string) (found []wire.Image, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked++
	for _, i := range h.images {
		if i.Name == name {
			found = append(found, i)
		}
	}
	return found, h.away
}

func (h *fakeHub) AllImages(context.Context, int64) ([]wire.Image, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lists++
	return h.images, h.away
}

// fakeChains knows one manifest. Its other methods are not used.
type fakeChains struct {
	Chains
	manifest, repository, chain string
}

func (c fakeChains) ImageChain(_ context.Context, manifest, repository string) (string, error) {
	if manifest != c.manifest || repository != c.repository {
		return "", fmt.Errorf("manifest %s of %s: %w", manifest, repository, chunk.ErrNotFound)
	}
	return c.chain, nil
}

func ready(name, chain string) wire.Image {
	return wire.Image{Name: name, State: wire.StateReady, Chain: chain, Platform: "linux/amd64"}
}

func testNames(h Hub, known ...key) *names {
	return newNames(h, fakeChains{}, "linux/amd64", known, slog.New(slog.DiscardHandler))
}

// age makes all that is known older.
func (n *names) age(by time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listed, n.retry = n.listed.Add(-by), n.retry.Add(-by)
	for name, f := range n.found {
		f.until = f.until.Add(-by)
		n.found[name] = f
	}
}

func wantChain(t *testing.T, n *names, name, want string) {
	t.Helper()
	if got, err := n.resolve(t.Context(), name); err != nil || got.chain != want {
		t.Errorf("resolve %s: got %q, %v; want %q", name, got.chain, err, want)
	}
}

// The list shows images that can be mounted, below the folders of their names. Of an image for
// several platforms, it shows the one for this machine.
func TestList(t *testing.T) {
	failed, arm := ready("example.org/a/failed:1", "sha256:1"), ready("example.org/a/both:1", "sha256:2")
	failed.State, arm.Platform = wire.StateFailed, "linux/arm64"
	other := arm
	other.Name = "example.org/a/other:1"
	h := &fakeHub{images: []wire.Image{arm, ready("example.org/a/both:1", "sha256:3"), failed, other,
		ready("localhost:5000/b:1", "sha256:4"), ready("no name", "sha256:5"), ready("../up:1", "sha256:6")}}
	n := testNames(h)
	n.refresh(t.Context(), listTTL)
	for name, want := range map[string]string{"example.org/a/both:1": "sha256:3", "example.org/a/other:1": "sha256:2",
		"localhost:5000/b:1": "sha256:4"} {
		wantChain(t, n, name, want)
	}
	if count, _, err := n.state(); count != 3 || err != nil || h.asked != 0 {
		t.Errorf("got %d images, %v, after %d requests for one name; want 3 and none", count, err, h.asked)
	}
	for path, want := range map[string]bool{"": true, "example.org": true, "example.org/a": true,
		"localhost:5000": true, "example.org/b": false, "..": false, "example.org/a/both:1": false} {
		if got := n.folder(path) != nil; got != want {
			t.Errorf("folder %q exists: %t, want %t", path, got, want)
		}
	}
}

// A list and an answer are used while they are fresh. A name that is not in the list is asked for.
// A name may get another chain.
func TestAnswersAreFresh(t *testing.T) {
	h := &fakeHub{images: []wire.Image{ready("a:1", "sha256:1")}}
	n := testNames(h)
	for range 3 {
		n.refresh(t.Context(), listTTL)
		wantChain(t, n, "a:1", "sha256:1")
	}
	h.set(nil, ready("a:1", "sha256:2"), ready("b:1", "sha256:3"))
	for range 3 {
		wantChain(t, n, "a:1", "sha256:1")
		wantChain(t, n, "b:1", "sha256:3")
	}
	if h.lists != 1 || h.asked != 1 {
		t.Errorf("%d lists and %d answers about one name were requested, want 1 of each", h.lists, h.asked)
	}
	n.age(nameTTL)
	wantChain(t, n, "a:1", "sha256:2")
	h.set(nil)
	n.age(nameTTL)
	if _, err := n.resolve(t.Context(), "a:1"); !errors.Is(err, errMissing) {
		t.Errorf("a removed image: got %v, want %v", err, errMissing)
	}
	asked := h.asked
	for range 3 {
		if _, err := n.resolve(t.Context(), "c:1"); !errors.Is(err, errMissing) {
			t.Errorf("an unknown image: got %v, want %v", err, errMissing)
		}
	}
	if h.asked != asked+1 {
		t.Errorf("%d requests for an unknown image within a moment, want 1", h.asked-asked)
	}
	h.set(nil, ready("c:1", "sha256:4"))
	n.age(missingTTL)
	wantChain(t, n, "c:1", "sha256:4")
}

// If many listed names are looked up after the list has become too old, as `ls -l` does, the list
// is requested once more, and not each name.
func TestScanRequestsTheList(t *testing.T) {
	h := &fakeHub{}
	for i := range 100 {
		h.images = append(h.images, ready(fmt.Sprintf("a:%d", i), "sha256:1"))
	}
	n := testNames(h)
	n.refresh(t.Context(), listTTL)
	n.age(nameTTL)
	for i := range 100 {
		wantChain(t, n, fmt.Sprintf("a:%d", i), "sha256:1")
	}
	if h.lists != 2 || h.asked != maxOld {
		t.Errorf("%d lists and %d answers about one name were requested, want 2 and %d", h.lists, h.asked, maxOld)
	}
}

// While no hub answers, older answers count, and a hub is asked rarely.
func TestHubIsAway(t *testing.T) {
	away := errors.New("connection refused")
	h := &fakeHub{away: away}
	n := testNames(h, key{"a:1", target{chain: "sha256:1"}})
	n.refresh(t.Context(), listTTL)
	wantChain(t, n, "a:1", "sha256:1") // of a previous daemon
	for range 3 {
		if _, err := n.resolve(t.Context(), "b:1"); !errors.Is(err, away) {
			t.Errorf("an unknown image: got %v, want %v", err, away)
		}
		n.refresh(t.Context(), listTTL)
	}
	if h.lists+h.asked != 1 {
		t.Errorf("%d requests within a moment, want 1", h.lists+h.asked)
	}
	h.set(nil, ready("a:1", "sha256:2"))
	n.age(awayPause)
	n.refresh(t.Context(), listTTL)
	wantChain(t, n, "a:1", "sha256:2")
	h.set(away)
	n.age(nameTTL)
	wantChain(t, n, "a:1", "sha256:2")
	if _, _, err := n.state(); !errors.Is(err, away) {
		t.Errorf("the state has error %v, want %v", err, away)
	}
}

// A name with a digest is resolved by a signed statement alone.
func TestDigest(t *testing.T) {
	manifest := "sha256:" + chunk.Sum([]byte("manifest")).String()
	h := &fakeHub{images: []wire.Image{ready("example.org/a@"+manifest, "sha256:bad")}}
	n := testNames(h)
	n.chains = fakeChains{manifest: manifest, repository: "example.org/a", chain: "sha256:good"}
	n.refresh(t.Context(), listTTL)
	wantChain(t, n, "example.org/a@"+manifest, "sha256:good")
	for _, name := range []string{"example.org/b@" + manifest, "example.org/a@sha256:1",
		"example.org/a:1@" + manifest} {
		if got, err := n.resolve(t.Context(), name); !errors.Is(err, errMissing) {
			t.Errorf("resolve %s: got %q, %v; want %v", name, got, err, errMissing)
		}
	}
}

// The remembered answers about single names are bounded.
func TestAnswersAreBounded(t *testing.T) {
	n := testNames(&fakeHub{})
	for i := range maxFound + 10 {
		_, _ = n.resolve(t.Context(), fmt.Sprintf("a:%d", i))
	}
	if len(n.found) > maxFound {
		t.Errorf("%d answers are remembered, want %d at most", len(n.found), maxFound)
	}
}

// A folder's name is part of a repository's name, or HOST:PORT.
func TestMayBeFolder(t *testing.T) {
	for _, c := range []struct {
		in, name string
		want     bool
	}{
		{"", "example.org", true}, {"", "localhost:5000", true}, {"", "tools", true}, {"example.org", "a", true},
		{"", ".Trash", false}, {"", "..", false}, {"example.org", "a:1", false}, {"example.org", "A", false},
		{"", "autorun.inf", true},
	} {
		if got := mayBeFolder(c.in, c.name); got != c.want {
			t.Errorf("%q in %q may be a folder: %t, want %t", c.name, c.in, got, c.want)
		}
	}
}

// BenchmarkList makes the folders of 10,000 images.
func BenchmarkList(b *testing.B) {
	var images []wire.Image
	for i := range 10000 {
		images = append(images, ready(fmt.Sprintf("example.org/group/image:%05d", i), "sha256:1"))
	}
	for b.Loop() {
		if _, count := listOf(images, "linux/amd64"); count != len(images) {
			b.Fatalf("%d images, want %d", count, len(images))
		}
	}
}
