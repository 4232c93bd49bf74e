package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/trace"
	"lighter/format/tree"
	"lighter/node/record"
)

// shelf is a Chunks that holds every chunk, half of them "here".
type shelf struct {
	mu     sync.Mutex
	chunks map[chunk.ID][]byte
	here   map[chunk.ID]bool
	warmed map[chunk.ID]int
	fail   error
	reach  int64
	enough func() bool // calls done when it is so
	done   func()
}

func (s *shelf) Cached(ref chunk.Ref, offset int, dst []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.here[ref.ID] && copy(dst, s.chunks[ref.ID][offset:]) == len(dst)
}

func (s *shelf) Has(id chunk.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.here[id]
}

func (s *shelf) Read(_ context.Context, ref chunk.Ref, offset int, dst []byte, _ func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	if copy(dst, s.chunks[ref.ID][offset:]) != len(dst) {
		return errors.New("beyond the chunk")
	}
	return nil
}

func (s *shelf) Received() map[string]int64 { return map[string]int64{"https://shelf.test": 7} }

func (s *shelf) Warm(_ context.Context, ref chunk.Ref) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warmed[ref.ID]++
	if s.enough != nil && s.enough() {
		s.done()
	}
	return nil
}

func (s *shelf) Stream(ctx context.Context, ref chunk.Ref, _ int64) (func(context.Context) (int64, error), error) {
	return func(context.Context) (int64, error) { return 0, s.Warm(ctx, ref) }, nil
}

func (s *shelf) Reach() int64 { return s.reach }

func (*shelf) Load([]chunk.Ref) {}

// build makes the device of a tree of a few files and the bytes that it should
// show.
func build(t testing.TB) (*Device, *shelf, []byte) { return buildOf(t, 40, 60000) }

// buildOf does so with that many files, of chunks of at most that many bytes.
func buildOf(t testing.TB, files, largest int) (*Device, *shelf, []byte) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	s := &shelf{chunks: map[chunk.ID][]byte{}, here: map[chunk.ID]bool{}, warmed: map[chunk.ID]int{}}
	var children []tree.Dirent
	var image []byte
	for i := range files {
		n := &tree.Node{Mode: tree.ModeRegular | 0o644, Nlink: 1}
		var content []byte
		for range 1 + r.IntN(5) {
			if r.IntN(4) == 0 {
				hole := make([]byte, 1+r.IntN(20000))
				content = append(content, hole...)
				n.Content.Extents = append(n.Content.Extents, tree.Extent{Length: int64(len(hole))})
				continue
			}
			plain := make([]byte, 1+r.IntN(largest))
			for k := range plain {
				plain[k] = byte(r.Uint32())
			}
			id := chunk.Sum(plain)
			s.chunks[id] = plain
			s.here[id] = r.IntN(2) == 0
			content = append(content, plain...)
			n.Content.Extents = append(n.Content.Extents, tree.Extent{ID: id, Length: int64(len(plain))})
		}
		n.Size = int64(len(content))
		image = append(image, content...)
		image = append(image, make([]byte, (4096-len(image)%4096)%4096)...)
		children = append(children, tree.Dirent{Name: fmt.Sprintf("%03d", i), Node: n})
	}
	root := tree.NewDir(tree.Node{Mode: 0o755}, children)
	var metadata, whole, extents bytes.Buffer
	m, err := index.Make(&tree.Tree{Root: root}, &metadata)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Write(&whole, &metadata); err != nil {
		t.Fatal(err)
	}
	if _, err := index.Receive(&whole, m.ID(), &extents, io.Discard); err != nil {
		t.Fatal(err)
	}
	x, err := index.OpenMap(bytes.NewReader(extents.Bytes()), m.ID(), index.NewPages(64))
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(image)) != m.DeviceSize {
		t.Fatalf("device of %d bytes, want %d", m.DeviceSize, len(image))
	}
	return New(x, nil, NewAhead(func() Chunks { return s }, AheadOptions{}, slog.New(slog.DiscardHandler)), slog.New(slog.DiscardHandler)), s, image
}

func TestDeviceShowsTheFiles(t *testing.T) {
	d, _, image := build(t)
	r := rand.New(rand.NewPCG(2, 2))
	missed := int64(0)
	for range 2000 {
		from := r.IntN(len(image))
		to := min(len(image), from+r.IntN(300_000))
		got := bytes.Repeat([]byte{0xEE}, to-from) // nothing of it may remain
		n, err := d.ReadAt(t.Context(), got, int64(from))
		if err != nil {
			t.Fatal(err)
		}
		missed += n
		if !bytes.Equal(got, image[from:to]) {
			t.Fatalf("bytes %d to %d are wrong", from, to)
		}
	}
	if s := d.Stats(); s.Faults != 2000 || s.Bytes == 0 || s.Missed == 0 || s.Missed != missed || s.Missed >= s.Bytes {
		t.Errorf("stats %+v", s)
	}
}

func TestDeviceAnswersWholeOrNotAtAll(t *testing.T) {
	d, s, image := build(t)
	s.fail = errors.New("no network")
	if _, err := d.ReadAt(t.Context(), make([]byte, len(image)), 0); !errors.Is(err, s.fail) {
		t.Errorf("a fault whose chunks cannot be had: %v", err)
	}
}

// What is read is noted, whether it was here or not; what is read ahead is not, nor
// what is read when nobody wants to know.
func TestDeviceNotesWhatIsRead(t *testing.T) {
	d, _, image := build(t)
	var got trace.Trace
	r := record.New(true, func(t trace.Trace) { got = t })
	read := func(offset, length int64) {
		t.Helper()
		if _, err := d.ReadAt(t.Context(), make([]byte, length), offset); err != nil {
			t.Fatal(err)
		}
	}
	size := int64(len(image)) &^ 4095
	read(size-4096, 4096)
	r.Starts(chunk.Sum(nil), d)
	read(size/2&^4095, 8192)
	read(0, 128<<10)
	r.Unmounted(chunk.Sum(nil))
	read(size-8192, 4096)
	if len(got.Reads) != 2 || got.Reads[0].Offset != size/2&^4095 || got.Reads[0].Length != 8192 || got.Reads[1].Offset != 0 || got.Reads[1].Length != 128<<10 {
		t.Errorf("noted: %v", got.Reads)
	}
}

// never is a Chunks whose units never come.
type never struct{ *shelf }

func (never) Warm(ctx context.Context, _ chunk.Ref) error { <-ctx.Done(); return ctx.Err() }
