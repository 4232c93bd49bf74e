package trees

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/node/prefetch"
)

// packed is a source that finds a chunk only by its unit.
type packed struct {
	prefetch.Source
	unlocated atomic.Int32 // reads by a chunk's ID
}

func (*packed) Has(chunk.ID) bool                  { return false }
func (*packed) Cached(chunk.Ref, int, []byte) bool { return false }
func (p *packed) Read(_ context.Context, ref chunk.Ref, _ int, dst []byte, _ func()) error {
	if ref.Unit.IsZero() {
		p.unlocated.Add(1)
		return chunk.ErrNotFound
	}
	clear(dst)
	return nil
}

// openPacked fetches a tree and serves it from a packed source.
func openPacked(t *testing.T, h *fakeHub) (*Store, *OpenTree, *packed) {
	t.Helper()
	trees, chunks := openTrees(t, h), &packed{}
	trees.prefetcher = prefetch.New(func() prefetch.Source { return chunks }, prefetch.Options{}, trees.log)
	if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
		t.Fatal(err)
	}
	m, _, err := trees.serveAny(t.Context(), h.tree)
	if err != nil {
		t.Fatal(err)
	}
	return trees, m, chunks
}

// reads reads one page of a device, and returns the error.
func reads(t *testing.T, m *OpenTree) error {
	t.Helper()
	_, err := m.Device.ReadAt(t.Context(), make([]byte, 4096), 90*4096)
	return err
}

// Locations that did not arrive with the index are fetched later, with backoff, and given to the
// open device.
func TestLocationsComeLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		h.noLocations.Store(true)
		trees, m, _ := openPacked(t, h)
		if err := reads(t, m); !errors.Is(err, chunk.ErrNotFound) {
			t.Errorf("without locations: got %v, want %v", err, chunk.ErrNotFound)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := h.askedLocations.Load(); n < 12 || n > 40 {
			t.Errorf("the hub was asked %d times in an hour, want 12 to 40", n)
		}
		h.noLocations.Store(false)
		time.Sleep(maxLocatePause)
		synctest.Wait()
		n := h.askedLocations.Load()
		if err := reads(t, m); err != nil {
			t.Error(err)
		}
		if got := files(t, trees); !slices.Equal(got, h.whole()) {
			t.Errorf("files %q, want %q", got, h.whole())
		}
		time.Sleep(time.Hour)
		if h.askedLocations.Load() != n {
			t.Error("the hub was asked after the locations had arrived")
		}
		m.close()
	})
}

// A read that needs locations starts an attempt to fetch them, although the next attempt is due
// later. Such attempts have pauses of repairPause. The read continues when the locations arrive.
func TestReadWantsLocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		h.noLocations.Store(true)
		trees, m, _ := openPacked(t, h)
		time.Sleep(time.Hour)
		synctest.Wait()
		asked := h.askedLocations.Load()
		for range 10 {
			if err := reads(t, m); err == nil {
				t.Error("a read without locations succeeded")
			}
		}
		if n := h.askedLocations.Load() - asked; n > 1 {
			t.Errorf("the hub was asked %d times at once, want at most 1", n)
		}
		h.noLocations.Store(false)
		time.Sleep(repairPause)
		if err := reads(t, m); err != nil {
			t.Error(err)
		}
		trees.Close()
	})
}

// If locations are damaged on the disk, they are fetched again, whether the device had opened them
// before or not.
func TestLocationsAreDamaged(t *testing.T) {
	for name, size := range map[string]int64{"emptied": 0, "cut": 100} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			trees, m, chunks := openPacked(t, h)
			path := trees.locations(h.tree)
			damage := func() {
				if err := errors.Join(os.Chmod(path, 0o600), os.Truncate(path, size)); err != nil {
					t.Fatal(err)
				}
			}
			damage()
			if err := reads(t, m); err != nil || chunks.unlocated.Load() != 1 {
				t.Errorf("damaged after they were opened: %d reads by ID, want 1: %v", chunks.unlocated.Load(), err)
			}
			damage()
			if err := trees.Unserve(h.tree); err != nil {
				t.Fatal(err)
			}
			next := openAt(trees.root, h)
			next.prefetcher = trees.prefetcher
			m, end, err := next.serveAny(t.Context(), h.tree)
			if err != nil {
				t.Fatal(err)
			}
			defer end()
			<-next.refresh(h.tree)
			if err := reads(t, m); err != nil || chunks.unlocated.Load() != 1 {
				t.Errorf("damaged before they were opened: %d reads by ID, want 1: %v", chunks.unlocated.Load(), err)
			}
		})
	}
}

// Replacing locations does not affect concurrent reads.
func TestLocationsAreReplaced(t *testing.T) {
	h := newHub(t)
	trees, m, chunks := openPacked(t, h)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := m.Device.ReadAt(context.Background(), make([]byte, 8*4096), 40*4096); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 50 {
		old := time.Now().Add(-refreshAge)
		if err := os.Chtimes(trees.locations(h.tree), old, old); err != nil {
			t.Fatal(err)
		}
		trees.locator.mu.Lock()
		clear(trees.locator.trees)
		trees.locator.mu.Unlock()
		<-trees.refresh(h.tree)
	}
	close(stop)
	readers.Wait()
	m.close()
	if h.askedLocations.Load() != 51 || chunks.unlocated.Load() != 0 {
		t.Errorf("fetched %d times, want 51; %d reads by ID, want 0", h.askedLocations.Load(), chunks.unlocated.Load())
	}
}

// When a tree is closed, and when the node ends, no fetch of locations stays in flight.
func TestLocatingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		h.locationsStall = true
		trees, _, _ := openPacked(t, h)
		synctest.Wait()
		if err := trees.Unserve(h.tree); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := os.Stat(filepath.Join(trees.dir(h.tree), "locations.new")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("partial locations are left: %v", err)
		}
		asked := h.askedLocations.Load()
		m, err := trees.open(h.tree)
		if err != nil {
			t.Fatal(err)
		}
		defer m.close()
		trees.served[h.tree] = m
		trees.Close()
		if err := reads(t, m); err == nil || h.askedLocations.Load() != asked {
			t.Errorf("after Close the hub was asked %d times, want 0: %v", h.askedLocations.Load()-asked, err)
		}
	})
}

// After EndStreams, locations are still fetched if reads need them.
func TestLocatingUntilTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		h.noLocations.Store(true)
		trees, m, _ := openPacked(t, h)
		defer m.close()
		synctest.Wait()
		trees.served[h.tree] = m
		trees.EndStreams()
		h.noLocations.Store(false)
		time.Sleep(repairPause)
		if err := reads(t, m); err != nil {
			t.Error(err)
		}
		trees.Close()
	})
}
