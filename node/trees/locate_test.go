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

// packed has every chunk elsewhere, in its unit alone.
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

// openPacked opens a tree of a hub, which has been fetched, over packed chunks.
func openPacked(t *testing.T, h *fakeHub) (*Store, *OpenTree, *packed) {
	t.Helper()
	trees, chunks := openTrees(t, h), &packed{}
	trees.prefetcher = prefetch.New(func() prefetch.Source { return chunks }, prefetch.Options{}, trees.log)
	if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
		t.Fatal(err)
	}
	m, err := trees.open(h.tree)
	if err != nil {
		t.Fatal(err)
	}
	m.locating.begin()
	return trees, m, chunks
}

func reads(t *testing.T, m *OpenTree) error {
	t.Helper()
	_, err := m.Device.ReadAt(t.Context(), make([]byte, 4096), 90*4096)
	return err
}

// Locations that did not come with the index come later, from a hub that is asked
// ever more rarely, into the device that is there.
func TestLocationsComeLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		h.noHint.Store(true)
		trees, m, _ := openPacked(t, h)
		if err := reads(t, m); !errors.Is(err, chunk.ErrNotFound) {
			t.Errorf("without locations: %v", err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := h.askedHints.Load(); n < 12 || n > 40 {
			t.Errorf("the hub was asked %d times in an hour", n)
		}
		h.noHint.Store(false)
		time.Sleep(locateRarest)
		synctest.Wait()
		n := h.askedHints.Load()
		if err := reads(t, m); err != nil {
			t.Error(err)
		}
		if got := files(t, trees); !slices.Equal(got, h.whole()) {
			t.Errorf("files %q", got)
		}
		time.Sleep(time.Hour)
		if h.askedHints.Load() != n {
			t.Error("the hub is asked although the locations are there")
		}
		m.close()
	})
}

// A read that needs locations ends a pause, though not again and again, and has its
// bytes as soon as they come.
func TestReadWantsLocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		h.noHint.Store(true)
		_, m, _ := openPacked(t, h)
		time.Sleep(time.Hour)
		synctest.Wait()
		asked := h.askedHints.Load()
		for range 10 {
			if err := reads(t, m); err == nil {
				t.Error("it was read, and nobody has it")
			}
		}
		if n := h.askedHints.Load() - asked; n > 1 {
			t.Errorf("the hub was asked %d times at once", n)
		}
		h.noHint.Store(false)
		time.Sleep(repairPause)
		if err := reads(t, m); err != nil {
			t.Error(err)
		}
		m.close()
	})
}

// Locations that the disk damages, before they are opened or after it, are fetched
// once more.
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
				t.Errorf("damaged under its device: %d reads by ID, %v", chunks.unlocated.Load(), err)
			}
			damage()
			m.close()
			m, err := trees.open(h.tree)
			if err != nil {
				t.Fatal(err)
			}
			defer m.close()
			<-m.locating.Locate()
			if err := reads(t, m); err != nil || chunks.unlocated.Load() != 1 {
				t.Errorf("damaged before: %d reads by ID, %v", chunks.unlocated.Load(), err)
			}
		})
	}
}

// Nobody who reads notices that locations are replaced.
func TestLocationsAreReplaced(t *testing.T) {
	h := newHub(t)
	_, m, chunks := openPacked(t, h)
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
		m.locating.mu.Lock()
		m.locating.next = time.Time{}
		m.locating.mu.Unlock()
		<-m.locating.Locate()
	}
	close(stop)
	readers.Wait()
	m.close()
	if h.askedHints.Load() != 51 || chunks.unlocated.Load() != 0 {
		t.Errorf("fetched %d times, %d reads by ID", h.askedHints.Load(), chunks.unlocated.Load())
	}
}

// A tree that is closed leaves nothing on its way behind, nor does a node that ends.
func TestLocatingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		h.hintStalls = true
		trees, m, _ := openPacked(t, h)
		synctest.Wait()
		m.close()
		if _, err := os.Stat(filepath.Join(trees.dir(h.tree), "locations.new")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a part of the locations: %v", err)
		}
		asked := h.askedHints.Load()
		m, err := trees.open(h.tree)
		if err != nil {
			t.Fatal(err)
		}
		defer m.close()
		trees.served[h.tree] = m
		trees.Close()
		if err := reads(t, m); err == nil || h.askedHints.Load() != asked {
			t.Errorf("after the end the hub was asked %d times, %v", h.askedHints.Load()-asked, err)
		}
	})
}

// As long as a node that ends is asked, it fetches what its answers need.
func TestLocatingUntilTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		h.noHint.Store(true)
		trees, m, _ := openPacked(t, h)
		defer m.close()
		synctest.Wait()
		trees.served[h.tree] = m
		trees.EndStreams()
		h.noHint.Store(false)
		time.Sleep(repairPause)
		if err := reads(t, m); err != nil {
			t.Error(err)
		}
		trees.Close()
	})
}
