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
	"time"

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

func (s *shelf) Read(_ context.Context, ref chunk.Ref, offset int, dst []byte) error {
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

func (*shelf) Misled() bool { return false }

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
	for range 2000 {
		from := r.IntN(len(image))
		to := min(len(image), from+r.IntN(300_000))
		got := bytes.Repeat([]byte{0xEE}, to-from) // nothing of it may remain
		if err := d.ReadAt(t.Context(), got, int64(from)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, image[from:to]) {
			t.Fatalf("bytes %d to %d are wrong", from, to)
		}
	}
	if s := d.Stats(); s.Faults != 2000 || s.Bytes == 0 || s.Missed == 0 || s.Missed >= s.Bytes {
		t.Errorf("stats %+v", s)
	}
}

func TestDeviceAnswersWholeOrNotAtAll(t *testing.T) {
	d, s, image := build(t)
	s.fail = errors.New("no network")
	if err := d.ReadAt(t.Context(), make([]byte, len(image)), 0); !errors.Is(err, s.fail) {
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
		if err := d.ReadAt(t.Context(), make([]byte, length), offset); err != nil {
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

func TestDeviceReadsAheadWithinTheFile(t *testing.T) {
	d, s, _ := build(t)
	clear(s.here)
	// The longest file, read in pieces from its start.
	var first, size, begin int64
	for i := range d.extents.Extents {
		e, err := d.extents.Extent(i)
		if err != nil {
			t.Fatal(err)
		}
		if e.First {
			begin = e.Offset
		}
		if e.End()-begin > size {
			first, size = begin, e.End()-begin
		}
	}
	for offset := first; offset < first+size-4096; offset += 4096 {
		if err := d.ReadAt(t.Context(), make([]byte, 4096), offset); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.wishes.refs) == 0 {
		t.Fatal("nothing was read ahead")
	}
	for _, ref := range d.wishes.refs {
		id := ref.ID
		found := false
		for i := range d.extents.Extents {
			e, _ := d.extents.Extent(i)
			found = found || e.ID == id && e.Offset >= first && e.Offset < first+size
		}
		if !found {
			t.Error("read ahead beyond the file")
		}
	}
}

// A reader of what a start reads gets nothing ahead of a startup pack that other starts
// read, until one of its triggers is.
func TestOtherStartsAreNotReadAhead(t *testing.T) {
	without, s, _ := build(t)
	clear(s.here)
	var first, begin, end, size int64 // extents of the longest file
	for i := range without.extents.Extents {
		e, err := without.extents.Extent(i)
		if err != nil {
			t.Fatal(err)
		}
		if e.First {
			begin = i
		}
		if b, _ := without.extents.Extent(begin); e.End()-b.Offset > size {
			first, end, size = begin, i+1, e.End()-b.Offset
		}
	}
	middle := (first + end) / 2
	mine, others := chunk.Sum([]byte("mine")), chunk.Sum([]byte("others"))
	b := index.NewLocations(without.extents.ID())
	for i := range without.extents.Extents {
		e, _ := without.extents.Extent(i)
		if s.here[e.ID] = i < middle; i < middle {
			b.Add(chunk.Unit{Pack: mine, N: uint32(i)})
		} else {
			b.Add(chunk.Unit{Pack: others, N: uint32(i)})
		}
	}
	n := without.extents.Extents
	b.Startup(index.Startup{Pack: mine, Units: int(n), Bytes: 1 << 20, AtMount: true})
	b.Startup(index.Startup{Pack: others, Units: int(n), Bytes: 1 << 20, Triggers: []int64{n - 1}})
	encoded := b.Encode()
	locations, err := index.OpenLocations(bytes.NewReader(encoded), int64(len(encoded)), without.extents.ID(), n)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	d := New(without.extents, locations, NewAhead(func() Chunks { return s }, AheadOptions{Limit: plenty}, log), log)
	defer d.Close()
	d.Begin()
	for d.stream.isRunning() { // all of it is here
		time.Sleep(time.Millisecond)
	}
	from, _ := d.extents.Extent(first)
	to, _ := d.extents.Extent(middle)
	for offset := from.Offset; offset < to.Offset; offset += 4096 {
		if err := d.ReadAt(t.Context(), make([]byte, min(4096, to.Offset-offset)), offset); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.wishes.refs) > 0 {
		t.Errorf("%d chunks that only others have read were read ahead", len(d.wishes.refs))
	}
}

func TestAheadFetchesWhatIsAsked(t *testing.T) {
	s := &shelf{warmed: map[chunk.ID]int{}}
	a := NewAhead(func() Chunks { return s }, AheadOptions{}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	s.enough = func() bool { return len(s.warmed) == 100 }
	s.done = cancel
	w := &wishes{chunks: s}
	for i := range 100 {
		if !a.ask(w, chunk.Ref{ID: chunk.ID{byte(i)}}) {
			t.Fatal("no room")
		}
	}
	a.Run(ctx) // until all are warm
	if len(s.warmed) != 100 {
		t.Errorf("%d of 100 were fetched", len(s.warmed))
	}
}

// What a device that is gone wanted is not fetched.
func TestClosedDeviceWantsNothing(t *testing.T) {
	d, _, _ := build(t)
	other := &wishes{chunks: d.chunks}
	for i := range 10 {
		d.ahead.ask(d.wishes, chunk.Ref{ID: chunk.ID{byte(i)}})
		d.ahead.ask(other, chunk.Ref{ID: chunk.ID{byte(100 + i)}})
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if w, ref := d.ahead.next(t.Context()); w != other || ref.ID[0] != byte(100+i) {
			t.Errorf("%v", ref.ID)
		}
	}
	if len(d.ahead.queues) > 0 {
		t.Error("something is wanted")
	}
}

// never is a Chunks whose units never come.
type never struct{ *shelf }

func (never) Warm(ctx context.Context, _ chunk.Ref) error { <-ctx.Done(); return ctx.Err() }

// Reading ahead on one device goes on while that on another is stuck, and what a
// device asks for is bounded.
func TestAheadIsFair(t *testing.T) {
	s := &shelf{warmed: map[chunk.ID]int{}}
	a := NewAhead(func() Chunks { return s }, AheadOptions{}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	blocked, other := &wishes{chunks: never{s}}, &wishes{chunks: s}
	for i := range 2 * aheadQueue {
		if room := a.ask(blocked, chunk.Ref{ID: chunk.Sum([]byte{byte(i), byte(i >> 8)})}); room != (i < aheadQueue) {
			t.Fatalf("room for %d: %v", i+1, room)
		}
	}
	for i := range 100 {
		a.ask(other, chunk.Ref{ID: chunk.ID{byte(i)}})
	}
	s.enough = func() bool { return len(s.warmed) == 100 }
	s.done = cancel
	a.Run(ctx) // until all of the other's are warm
	if len(s.warmed) != 100 {
		t.Errorf("%d of 100 were fetched", len(s.warmed))
	}
}
