package device

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"lighter/format/chunk"
	"lighter/node/fuse"
	"lighter/test/testkit/filetree"
)

// memory is a Chunks in memory. Some of its chunks count as cached.
type memory struct {
	mu     sync.Mutex
	chunks map[chunk.ID][]byte
	cached map[chunk.ID]bool
	fail   error // of Read
}

func (m *memory) Cached(ref chunk.Ref, offset int, dst []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cached[ref.ID] && copy(dst, m.chunks[ref.ID][offset:]) == len(dst)
}

func (m *memory) Read(_ context.Context, ref chunk.Ref, offset int, dst []byte, _ func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	if copy(dst, m.chunks[ref.ID][offset:]) != len(dst) {
		return errors.New("read beyond the chunk")
	}
	return nil
}

// newDevice returns a device of a few files, its chunks and its bytes. Half of the chunks count as
// cached.
func newDevice(t testing.TB) (*Device, *memory, []byte) {
	t.Helper()
	tree := filetree.New(t, 40, 60000)
	m := &memory{chunks: tree.Chunks, cached: tree.Half}
	return New(tree.Extents, nil, m, slog.New(slog.DiscardHandler)), m, tree.Image
}

// ReadAt returns the device's bytes, whether their chunks are cached or missing, and counts the
// missing bytes.
func TestReadAtReturnsTheBytes(t *testing.T) {
	d, _, image := newDevice(t)
	r := rand.New(rand.NewPCG(2, 2))
	missed := int64(0)
	for range 2000 {
		from := r.IntN(len(image))
		to := min(len(image), from+r.IntN(300_000))
		got := bytes.Repeat([]byte{0xEE}, to-from) // ReadAt has to overwrite all of these bytes
		n, err := d.ReadAt(t.Context(), got, int64(from))
		if err != nil {
			t.Fatal(err)
		}
		missed += n
		if !bytes.Equal(got, image[from:to]) {
			t.Fatalf("bytes %d to %d differ from those of the device", from, to)
		}
	}
	if s := d.Stats(); s.Faults != 2000 || s.Bytes == 0 || s.Missed != missed || missed == 0 || missed >= s.Bytes {
		t.Errorf("got stats %+v; want 2000 faults and %d missed bytes, more than 0 and less than all", s, missed)
	}
}

func TestReadAtFailsWithoutTheChunk(t *testing.T) {
	d, m, image := newDevice(t)
	m.fail = errors.New("no network")
	if _, err := d.ReadAt(t.Context(), make([]byte, len(image)), 0); !errors.Is(err, m.fail) {
		t.Errorf("a read of missing chunks: got %v, want %v", err, m.fail)
	}
}

// If no hub has a chunk any more, the error names a possible reason and a remedy.
func TestReadOfAGoneImage(t *testing.T) {
	d, m, image := newDevice(t)
	m.fail = chunk.ErrNotFound
	_, err := d.ReadAt(t.Context(), make([]byte, len(image)), 0)
	if !errors.Is(err, chunk.ErrNotFound) || !strings.Contains(err.Error(), "pull the image again") {
		t.Errorf("a read of chunks that are gone: got %v, want it to say: pull the image again", err)
	}
}

// A read fails if the extent map is unreadable. It succeeds if the map is repaired.
func TestReadAtRepairsTheIndex(t *testing.T) {
	tree := filetree.New(t, 40, 60000)
	broken := *tree.Extents
	broken.Extents *= 2 // the map's file has no pages for the additional extents
	m := &memory{chunks: tree.Chunks, cached: tree.Half}
	d := New(&broken, nil, m, slog.New(slog.DiscardHandler))
	last := int64(len(tree.Image)) - 10
	if _, err := d.ReadAt(t.Context(), make([]byte, 20), last); !errors.Is(err, fuse.ErrIndex) {
		t.Fatalf("a read with an unreadable extent map: got %v, want %v", err, fuse.ErrIndex)
	}
	d.RepairWith(func(context.Context, error) bool { broken.Extents /= 2; return true })
	got := make([]byte, 10)
	if _, err := d.ReadAt(t.Context(), got, last); err != nil || !bytes.Equal(got, tree.Image[last:]) {
		t.Errorf("a read with a repaired extent map: got other bytes than those of the device, or error %v", err)
	}
}

// observed is an Observer that stores the reads.
type observed struct{ reads []Read }

func (o *observed) Observe(r Read) { o.reads = append(o.reads, r) }

// Each observer gets every read from Observe to stop, with the read's extents and its first missing
// chunk.
func TestObserversSeeEachRead(t *testing.T) {
	d, m, image := newDevice(t)
	read := func(offset, length int64) {
		t.Helper()
		if _, err := d.ReadAt(t.Context(), make([]byte, length), offset); err != nil {
			t.Fatal(err)
		}
	}
	first, second := &observed{}, &observed{}
	read(0, 4096)
	stop := d.Observe(first)
	d.Observe(second)
	size := int64(len(image))
	read(size-4096, 4096)
	read(0, 128<<10)
	stop()
	stop() // a second call does nothing
	read(0, 10)
	if len(first.reads) != 2 || len(second.reads) != 3 || !slices.Equal(first.reads, second.reads[:2]) {
		t.Fatalf("the observers saw %v and %v; want two reads, and the same two and a third", first.reads, second.reads)
	}
	for i, want := range []Read{{Offset: size - 4096, Length: 4096}, {Length: 128 << 10}} {
		r := first.reads[i]
		if r.Offset != want.Offset || r.Length != want.Length {
			t.Errorf("read %d: %d bytes at %d, want %d at %d", i, r.Length, r.Offset, want.Length, want.Offset)
		}
		missing := int64(-1)
		for x := r.First; x < r.End; x++ {
			e, err := d.Extents().Extent(x)
			if err != nil || e.End() <= r.Offset || e.Offset >= r.Offset+r.Length {
				t.Errorf("read %d: extent %d is not in the range, or cannot be read: %v", i, x, err)
			}
			if missing < 0 && !m.cached[e.ID] {
				missing = x
			}
		}
		if r.First >= r.End || r.Missing != missing {
			t.Errorf("read %d: %+v, want %d as the first missing extent", i, r, missing)
		}
	}
}

// For a read between extents, observers get an empty range of extents.
func TestObserversSeeHoles(t *testing.T) {
	d, _, _ := newDevice(t)
	o := &observed{}
	d.Observe(o)
	previous := int64(0)
	for i := range d.Extents().Extents {
		e, err := d.Extents().Extent(i)
		if err != nil {
			t.Fatal(err)
		}
		if e.Offset > previous {
			break
		}
		previous = e.End()
	}
	if _, err := d.ReadAt(t.Context(), make([]byte, 1), previous); err != nil {
		t.Fatal(err)
	}
	if r := o.reads[0]; r.First != r.End || r.Missing != -1 {
		t.Errorf("a read of a hole: got %+v, want no extents", r)
	}
}
