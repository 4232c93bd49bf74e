package trees

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/prefetch"
)

// moved is a source that has all chunks in one pack.
type moved struct {
	prefetch.Source
	pack    chunk.ID
	byID    bool // chunks are also found by their IDs
	located int  // reads that named the pack
}

func (*moved) Has(chunk.ID) bool                  { return false }
func (*moved) Cached(chunk.Ref, int, []byte) bool { return false }

func (m *moved) Read(_ context.Context, ref chunk.Ref, _ int, _ []byte, missed func()) error {
	if ref.Unit.Pack == m.pack {
		m.located++
		return nil
	}
	missed()
	if m.byID {
		return nil
	}
	return chunk.ErrNotFound
}

// relocated gives a hub new locations, which name one pack, and returns the pack.
func (h *fakeHub) relocated(name string) chunk.ID {
	pack := chunk.Sum([]byte(name))
	l := index.NewLocations(h.tree)
	for range 100 {
		l.Add(chunk.Unit{Pack: pack})
	}
	h.changing.Lock()
	defer h.changing.Unlock()
	h.locations = l.Encode()
	return pack
}

// young makes the modification time of a file that was just written the time of the test's clock.
// That clock is behind the file system's clock.
func young(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err == nil && info.ModTime().Before(time.Now()) {
		return
	}
	if err := os.Chtimes(path, time.Time{}, time.Now()); err != nil {
		t.Fatal(err)
	}
}

// servedOf fetches a hub's tree and opens it as if it were served.
func servedOf(t *testing.T, h *fakeHub, chunks prefetch.Source) (*Store, *OpenTree) {
	t.Helper()
	trees := openTrees(t, h)
	trees.prefetcher = prefetch.New(func() prefetch.Source { return chunks }, prefetch.Options{}, trees.log)
	if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
		t.Fatal(err)
	}
	m, err := trees.open(h.tree)
	if err != nil {
		t.Fatal(err)
	}
	trees.served[h.tree] = m
	t.Cleanup(func() {
		trees.Close()
		m.close()
	})
	return trees, m
}

func (s *Store) hasLocations(tb testing.TB, tree chunk.ID, want []byte) {
	tb.Helper()
	if got, err := os.ReadFile(s.locations(tree)); err != nil || !slices.Equal(got, want) {
		tb.Errorf("the file of locations has wrong contents: %d bytes, want %d: %v", len(got), len(want), err)
	}
}

// If a tree on the disk is pulled again, it gets newer locations, on the disk and in its open
// device. The hub is asked once a minute at most, even if it fails or the node restarts. Unchanged
// locations are not written, whether or not the origin sends them again.
func TestNewerLocations(t *testing.T) {
	for name, knows := range map[string]bool{"hub": true, "files": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHub(t)
				h.skipsCurrent = knows
				chunks := &moved{}
				trees, m := servedOf(t, h, chunks)
				path := trees.locations(h.tree)
				pull := func() {
					t.Helper()
					asked := h.askedLocations.Load()
					for range 3 {
						if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
							t.Error(err)
						}
						synctest.Wait()
						young(t, path)
					}
					if n := h.askedLocations.Load() - asked; n != 1 {
						t.Errorf("the hub was asked %d times, want 1", n)
					}
				}
				pull()
				before, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(refreshAge)
				pull()
				if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
					t.Errorf("unchanged locations were written again: %v", err)
				}
				chunks.pack = h.relocated("later")
				time.Sleep(refreshAge)
				h.noLocations.Store(true)
				pull()
				time.Sleep(refreshAge - time.Second)
				h.noLocations.Store(false)
				asked := h.askedLocations.Load()
				other := openAt(trees.root, h)
				<-other.refresh(h.tree)
				if h.askedLocations.Load() != asked {
					t.Error("a hub that failed was asked again at once")
				}
				time.Sleep(time.Second)
				trees.locals.bytes[h.tree] = 1
				if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				if h.askedLocations.Load() != asked {
					t.Error("the hub was asked for a tree with a local device")
				}
				delete(trees.locals.bytes, h.tree)
				pull()
				trees.hasLocations(t, h.tree, h.locations)
				if err := reads(t, m); err != nil || chunks.located != 1 {
					t.Errorf("%d reads used the current unit, want 1: %v", chunks.located, err)
				}
				if got := files(t, trees); !slices.Equal(got, h.whole()) {
					t.Errorf("files %q, want %q", got, h.whole())
				}
			})
		})
	}
}

// endless is an endless stream that counts the bytes read.
type endless struct{ read int64 }

func (e *endless) Read(b []byte) (int, error) {
	e.read += int64(len(b))
	return len(b), nil
}

// Invalid locations are not used. Of endless locations, only a bounded number of bytes is read.
func TestNewerLocationsAreWrong(t *testing.T) {
	h := newHub(t)
	chunks := &moved{pack: chunk.Sum([]byte("pack"))}
	trees, m := servedOf(t, h, chunks)
	right := h.locations
	h.locations = right[:len(right)-8]
	old := time.Now().Add(-refreshAge)
	if err := os.Chtimes(trees.locations(h.tree), old, old); err != nil {
		t.Fatal(err)
	}
	<-trees.refresh(h.tree)
	trees.hasLocations(t, h.tree, right)
	if err := reads(t, m); err != nil || h.askedLocations.Load() != 2 || chunks.located != 1 {
		t.Errorf("asked %d times, want 2; %d reads used the current unit, want 1: %v", h.askedLocations.Load(),
			chunks.located, err)
	}
	var more endless
	h.moreLocations = &more
	if changed, err := trees.updateLocations(t.Context(), h.tree, 100); err == nil || changed || more.read > 1<<20 {
		t.Errorf("%d bytes were read: changed %v, %v; want an error within 1 MiB", more.read, changed, err)
	}
	if got := files(t, trees); !slices.Equal(got, h.whole()) {
		t.Errorf("files %q, want %q", got, h.whole())
	}
}

// If a chunk is not in the unit that the locations name, newer locations are fetched. A read that
// finds the chunk by its ID does not wait for them. A read that does not find the chunk waits.
func TestChunksHaveMoved(t *testing.T) {
	for name, byID := range map[string]bool{"hub": true, "mirror": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHub(t)
				chunks := &moved{byID: byID}
				trees, m := servedOf(t, h, chunks)
				chunks.pack = h.relocated("later")
				located := 1
				if byID {
					located = 0
				}
				if err := reads(t, m); err != nil || chunks.located != located {
					t.Errorf("the first read: %v; %d reads used the current unit, want %d", err, chunks.located,
						located)
				}
				synctest.Wait()
				young(t, trees.locations(h.tree))
				trees.hasLocations(t, h.tree, h.locations)
				if err := reads(t, m); err != nil || chunks.located != located+1 {
					t.Errorf("the second read: %v; %d reads used the current unit, want %d", err, chunks.located,
						located+1)
				}
				// The chunks move again a moment later: no hub is asked, and no read waits.
				chunks.pack = h.relocated("latest")
				asked := h.askedLocations.Load()
				if err := reads(t, m); (err == nil) != byID || h.askedLocations.Load() != asked {
					t.Errorf("%v; the hub was asked %d times, want 0", err, h.askedLocations.Load()-asked)
				}
			})
		})
	}
}

// outage is a source that has all chunks in one pack. A read of another pack waits until the pack
// has the chunks.
type outage struct{ moved }

func (o *outage) Read(ctx context.Context, ref chunk.Ref, _ int, _ []byte, missed func()) error {
	for ref.Unit.Pack != o.pack {
		missed()
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	o.located++
	return nil
}

// A read that waits for a chunk continues with newer locations when they arrive, even if the hub
// has none at first.
func TestNewerLocationsForReadersThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		chunks := &outage{}
		_, m := servedOf(t, h, chunks)
		h.noLocations.Store(true)
		chunks.pack = h.relocated("later")
		read := make(chan error)
		go func() { read <- reads(t, m) }()
		time.Sleep(refreshAge / 2)
		h.noLocations.Store(false)
		if err := <-read; err != nil || chunks.located != 1 || h.askedLocations.Load() > 4 {
			t.Errorf("%v; asked %d times, want at most 4; %d reads used the current unit, want 1", err,
				h.askedLocations.Load(), chunks.located)
		}
	})
}

// If newer locations arrive after a device was opened and before it is served, the served device
// has the newer locations.
func TestLocationsArriveBeforeServe(t *testing.T) {
	h := newHub(t)
	chunks := &moved{}
	trees, m := servedOf(t, h, chunks)
	delete(trees.served, h.tree)
	chunks.pack = h.relocated("later")
	if changed, err := trees.updateLocations(t.Context(), h.tree, 100); err != nil || !changed {
		t.Fatalf("changed %v, %v; want newer locations", changed, err)
	}
	if err := trees.serve(m); err != nil {
		t.Fatal(err)
	}
	if err := reads(t, m); err != nil || chunks.located != 1 {
		t.Errorf("%d reads used the current unit, want 1: %v", chunks.located, err)
	}
}

// While a tree is served, its locations are renewed once a day, though nothing pulls or mounts it.
func TestLocationsAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		chunks := &moved{}
		trees, m := servedOf(t, h, chunks)
		young(t, trees.locations(h.tree))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go trees.RenewLocations(ctx)
		asked := h.askedLocations.Load()
		after := func(d time.Duration) int32 {
			for end := time.Now().Add(d); time.Now().Before(end); {
				time.Sleep(time.Minute)
				synctest.Wait()
				young(t, trees.locations(h.tree))
			}
			return int32(h.askedLocations.Load() - asked)
		}
		if n := after(renewAge - time.Minute); n != 0 {
			t.Errorf("asked %d times in a day, want 0", n)
		}
		chunks.pack = h.relocated("later")
		if n := after(2 * renewEvery); n != 1 {
			t.Errorf("asked %d times after a day, want once", n)
		}
		if err := reads(t, m); err != nil || chunks.located != 1 {
			t.Errorf("%d reads used the current unit, want 1: %v", chunks.located, err)
		}
		if n := after(4 * renewAge); n < 4 || n > 6 {
			t.Errorf("asked %d times in five days, want 4 to 6", n)
		}
	})
}

// A node that ends leaves no attempt and no partial file behind.
func TestRefreshEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		trees, _ := servedOf(t, h, &moved{})
		h.locationsStall = true
		tried := trees.refresh(h.tree)
		synctest.Wait()
		if h.askedLocations.Load() != 2 {
			t.Error("the hub was not asked")
		}
		trees.Close()
		<-tried
		if got := files(t, trees); !slices.Equal(got, h.whole()) {
			t.Errorf("files %q, want %q", got, h.whole())
		}
		<-trees.refresh(h.tree)
		if h.askedLocations.Load() != 2 {
			t.Error("the hub was asked after Close")
		}
	})
}

// The locations of at most locateTogether trees are fetched at a time.
func TestFewAreRefreshedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		trees, _ := servedOf(t, h, &moved{})
		h.locationsStall = true
		for i := range 40 {
			h.tree = chunk.Sum([]byte{byte(i)})
			if err := os.Mkdir(filepath.Dir(trees.locations(h.tree)), 0o700); err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = trees.updateLocations(trees.locator.ctx, h.tree, 100) }()
			synctest.Wait()
		}
		if n := h.askedLocations.Load(); n != 1+locateTogether {
			t.Errorf("the locations of %d trees are fetched at a time, want %d", n-1, locateTogether)
		}
	})
}

// Locations that arrive slowly delay only the readers of their tree.
func TestSlowLocationsDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := newHub(t)
		other := likeTree(t, slow.tree)
		trees := openTrees(t, slow)
		for _, h := range []*fakeHub{slow, other} {
			trees.source = h
			if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		stuck := make(chan error, 1)
		slow.locationsStall = true
		trees.source = slow
		go func() {
			_, err := trees.updateLocations(ctx, slow.tree, 100)
			stuck <- err
		}()
		synctest.Wait()
		trees.source = other
		other.relocated("elsewhere")
		begin := time.Now() // by the clock of the test
		if changed, err := trees.updateLocations(t.Context(), other.tree, 100); !changed || err != nil ||
			time.Since(begin) > 0 {
			t.Errorf("after %s: changed %v, %v; want new locations at once", time.Since(begin), changed, err)
		}
		cancel()
		if err := <-stuck; err == nil {
			t.Error("got locations that the hub has not sent")
		}
	})
}
