package index

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"lighter/format/chunk"
	"lighter/format/tree"
	"lighter/test/testkit/golden"
)

func id(n int) chunk.ID { return chunk.Sum([]byte(fmt.Sprint(n))) }

// file returns a regular file of pieces: a positive number is the length of a chunk, a negative one
// that of a hole.
func file(pieces ...int64) *tree.Node {
	n := &tree.Node{Mode: tree.ModeRegular | 0o644, Nlink: 1}
	for i, p := range pieces {
		e := tree.Extent{Length: max(p, -p)}
		if p > 0 {
			e.ID = id(int(p)*1000 + i)
		}
		n.Content.Extents = append(n.Content.Extents, e)
		n.Size += e.Length
	}
	return n
}

func dir(t testing.TB, names map[string]*tree.Node) *tree.Node {
	t.Helper()
	var children []tree.Dirent
	for name, n := range names {
		children = append(children, tree.Dirent{Name: name, Node: n})
	}
	return tree.NewDir(tree.Node{Mode: 0o755}, children)
}

// made makes an index, and returns it and its bytes.
func made(t testing.TB, root *tree.Node) (*Made, []byte) {
	t.Helper()
	var metadata, whole bytes.Buffer
	m, err := Make(&tree.Tree{Root: root}, &metadata)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Write(&whole, bytes.NewReader(metadata.Bytes())); err != nil {
		t.Fatal(err)
	}
	return m, whole.Bytes()
}

func sample(t testing.TB) *tree.Node {
	twice := file(5000)
	twice.Nlink = 2
	inline := &tree.Node{Mode: tree.ModeRegular | 0o600, Nlink: 2, Size: 3,
		Content: tree.Content{Inline: []byte("abc")}}
	return dir(t, map[string]*tree.Node{
		"a":     file(100, 4096, 7),
		"same":  file(100, 4096, 7),
		"b":     dir(t, map[string]*tree.Node{"link": twice, "hole": file(-70000, 200, -8192), "inline": inline}),
		"link":  twice,
		"lnk2":  inline,
		"empty": {Mode: tree.ModeRegular | 0o644, Nlink: 1},
		"zeros": file(-65536),
	})
}

func TestMakeLaysFilesOut(t *testing.T) {
	m, _ := made(t, sample(t))
	// a and same share 4203 bytes (2 blocks); hole 78392 (20); link 5000 (2); zeros 65536 (16).
	if want := int64(2+20+2+16) * pageSize; m.DeviceSize != want {
		t.Errorf("the device has %d bytes, want %d", m.DeviceSize, want)
	}
	if m.Files != 7 || m.Bytes != 2*4203+78392+5000+65536+3 {
		t.Errorf("the header counts %d files of %d bytes, want 7 of %d", m.Files, m.Bytes, 2*4203+78392+5000+65536+3)
	}
	if m.Extents != 5 || m.DistinctChunks != 5 || m.DistinctBytes != 4203+200+5000 {
		t.Errorf("%d extents, %d chunks of %d bytes; want 5, and 5 of %d", m.Extents, m.DistinctChunks, m.DistinctBytes,
			4203+200+5000)
	}
}

func TestReceiveAndRead(t *testing.T) {
	m, whole := made(t, sample(t))
	var extents, metadata bytes.Buffer
	h, err := Receive(bytes.NewReader(whole), m.ID(), &extents, &metadata)
	if err != nil {
		t.Fatal(err)
	}
	if h != m.Header || int64(extents.Len()) != h.MapSize() || int64(metadata.Len()) != h.MetadataSize {
		t.Errorf("received %+v with %d and %d bytes, want the header and parts of its sizes",
			h, extents.Len(), metadata.Len())
	}
	if chunk.Sum(metadata.Bytes()) != h.Metadata {
		t.Error("the received metadata image differs")
	}
	x, err := OpenMap(bytes.NewReader(extents.Bytes()), m.ID(), NewPages(64))
	if err != nil {
		t.Fatal(err)
	}
	var refs []chunk.Ref
	if err := m.Refs(func(i int64, ref chunk.Ref) error { refs = append(refs, ref); return nil }); err != nil {
		t.Fatal(err)
	}
	for i, ref := range refs {
		if e, err := x.Extent(int64(i)); err != nil || e.ID != ref.ID || e.Length != ref.Length {
			t.Errorf("extent %d is %v, error %v; want chunk %v", i, e, err, ref)
		}
	}
	if _, err := x.Extent(5); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("a missing extent: got %v, want ErrNotFound", err)
	}
}

// many returns a tree of n files of one to three chunks each.
func many(t testing.TB, n int) *tree.Node {
	names := map[string]*tree.Node{}
	r := rand.New(rand.NewPCG(1, 1))
	for i := range n {
		pieces := []int64{int64(r.IntN(9000) + 1)}
		for range r.IntN(3) {
			pieces = append(pieces, int64(r.IntN(20000)+1))
		}
		if r.IntN(4) == 0 {
			pieces = append(pieces, -int64(r.IntN(30000)+1))
		}
		names[fmt.Sprintf("f%06d", i)] = file(pieces...)
	}
	return dir(t, names)
}

func TestFindAgreesWithASearchFromTheStart(t *testing.T) {
	m, whole := made(t, many(t, 500))
	var extents bytes.Buffer
	if _, err := Receive(bytes.NewReader(whole), m.ID(), &extents, io.Discard); err != nil {
		t.Fatal(err)
	}
	x, err := OpenMap(bytes.NewReader(extents.Bytes()), m.ID(), NewPages(64))
	if err != nil {
		t.Fatal(err)
	}
	var all []Extent
	for i := range x.Extents {
		e, err := x.Extent(i)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	r := rand.New(rand.NewPCG(2, 2))
	for range 3000 {
		offset := r.Int64N(m.DeviceSize + 5000)
		want := int64(len(all))
		for i, e := range all {
			if e.End() > offset {
				want = int64(i)
				break
			}
		}
		if got, err := x.Find(offset); err != nil || got != want {
			t.Fatalf("Find(%d) = %d, %v; want %d", offset, got, err, want)
		}
	}
}

// Each flipped bit is an error, whether it is flipped in transit or on the disk.
func TestEveryBitIsVerified(t *testing.T) {
	m, whole := made(t, many(t, 60))
	if m.Pages < 2 {
		t.Fatal("there is only one page")
	}
	r := rand.New(rand.NewPCG(3, 3))
	for range 2000 {
		b := bytes.Clone(whole)
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		if _, err := Receive(bytes.NewReader(b), m.ID(), io.Discard, io.Discard); err == nil {
			t.Fatal("a flipped bit was accepted")
		}
	}
	for _, n := range []int{0, 10, headerSize, headerSize + 5, len(whole) - 1} {
		if _, err := Receive(bytes.NewReader(whole[:n]), m.ID(), io.Discard, io.Discard); err == nil {
			t.Errorf("an index cut to %d bytes was accepted", n)
		}
	}
	if _, err := Receive(bytes.NewReader(append(whole, 0)), m.ID(), io.Discard, io.Discard); err == nil {
		t.Error("an additional byte was accepted")
	}
	if _, err := Receive(bytes.NewReader(whole), id(1), io.Discard, io.Discard); err == nil {
		t.Error("another tree was accepted")
	}

	var extents bytes.Buffer
	if _, err := Receive(bytes.NewReader(whole), m.ID(), &extents, io.Discard); err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		b := bytes.Clone(extents.Bytes())
		at := r.IntN(len(b))
		if at >= headerSize+len(m.table) && at < pageSize {
			continue // padding before the pages is not read
		}
		b[at] ^= 1 << r.IntN(8)
		x, err := OpenMap(bytes.NewReader(b), m.ID(), NewPages(64))
		if err != nil {
			continue
		}
		var byNumber, byOffset error
		for page := range x.Pages {
			_, err := x.Extent(page * pageExtents)
			byNumber = errors.Join(byNumber, err)
			_, err = x.Find(int64(binary.LittleEndian.Uint64(m.table[page*pageEntrySize:])))
			byOffset = errors.Join(byOffset, err)
		}
		if byNumber == nil || byOffset == nil {
			t.Fatalf("byte %d flipped on the disk was accepted: %v, %v", at, byNumber, byOffset)
		}
	}
}

// The content of a file can be the bytes of another file's chunk list, so that the SHA-256 of both
// is equal. Each must have its own place: otherwise one would show the other's bytes.
func TestContentsThatSpellOutListsAreNotMistaken(t *testing.T) {
	listed := file(4096, 4096, 4096, 100)
	var list []byte
	for _, e := range listed.Content.Extents {
		list = append(list, e.ID[:]...)
		list = binary.LittleEndian.AppendUint64(list, uint64(e.Length))
	}
	spelled := file(int64(len(list)))
	spelled.Content.Extents[0].ID = chunk.Sum(list)
	for _, names := range [][2]string{{"a", "b"}, {"b", "a"}} {
		m, whole := made(t, dir(t, map[string]*tree.Node{names[0]: listed, names[1]: spelled}))
		if want := int64(4*pageSize + pageSize); m.DeviceSize != want || m.Extents != 5 || m.DistinctChunks != 5 {
			t.Errorf("%v: a device of %d bytes, %d extents and %d chunks; want %d, 5 and 5", names, m.DeviceSize,
				m.Extents, m.DistinctChunks, want)
		}
		var extents bytes.Buffer
		if _, err := Receive(bytes.NewReader(whole), m.ID(), &extents, io.Discard); err != nil {
			t.Fatal(err)
		}
		x, err := OpenMap(bytes.NewReader(extents.Bytes()), m.ID(), NewPages(64))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for i := range x.Extents {
			e, err := x.Extent(i)
			if err != nil {
				t.Fatal(err)
			}
			found = found || e.First && e.ID == chunk.Sum(list)
		}
		if !found {
			t.Errorf("%v: the file whose content is a chunk list is not on the device", names)
		}
	}
}

// reserve counts inodes, not names: a hostile layer can have many names at little cost.
func TestReserveCountsInodes(t *testing.T) {
	n := file(1000, 1000, 1000)
	n.Nlink = 10_000
	names := map[string]*tree.Node{"other": file(7)}
	for i := range n.Nlink {
		names[fmt.Sprint(i)] = n
	}
	l := newMapMaker()
	l.reserve(dir(t, names))
	if cap(l.pages) > pageSize || cap(l.table) > pageEntrySize || len(l.linked) != 0 {
		t.Errorf("reserved %d bytes of pages and %d of the table for 4 extents, want one page and one entry; "+
			"%d nodes count as met, want none", cap(l.pages), cap(l.table), len(l.linked))
	}
}

func TestMakeIsDeterministic(t *testing.T) {
	a, wholeA := made(t, many(t, 300))
	b, wholeB := made(t, many(t, 300))
	if a.ID() != b.ID() || !bytes.Equal(wholeA, wholeB) {
		t.Error("the same tree gave two indexes")
	}
	c, _ := made(t, many(t, 301))
	if a.ID() == c.ID() {
		t.Error("two trees gave one tree ID")
	}
}

func TestMakeRefuses(t *testing.T) {
	bad := file(10)
	bad.Size = 11
	long := file(chunk.MaxLength + 1)
	for name, n := range map[string]*tree.Node{"extents that do not add up": bad, "a chunk that is too long": long} {
		if _, err := Make(&tree.Tree{Root: dir(t, map[string]*tree.Node{"f": n})}, io.Discard); err == nil {
			t.Errorf("%s: accepted, want an error", name)
		}
	}
}

func TestGolden(t *testing.T) {
	m, whole := made(t, sample(t))
	golden.Compare(t, "index.golden", fmt.Sprintf("tree ID %s\n%s", m.ID(), hex.Dump(whole[:m.MapSize()])))
	// A map of several pages.
	if m, whole = made(t, many(t, 100)); m.Pages < 3 {
		t.Fatalf("the map has %d pages, want at least 3", m.Pages)
	}
	golden.Compare(t, "pages.golden", fmt.Sprintf("tree ID %s\n%s", m.ID(), hex.Dump(whole[:headerSize+len(m.table)])))
}

func FuzzReceive(f *testing.F) {
	m, whole := made(f, sample(f))
	f.Add(whole)
	f.Add(whole[:headerSize])
	f.Fuzz(func(t *testing.T, b []byte) {
		// The right tree ID for any header, so that the parts after it are reached.
		name := m.ID()
		if len(b) >= headerSize {
			name = chunk.Sum(b[:headerSize])
		}
		var extents bytes.Buffer
		if _, err := Receive(bytes.NewReader(b), name, &extents, io.Discard); err != nil {
			return
		}
		x, err := OpenMap(bytes.NewReader(extents.Bytes()), name, NewPages(64))
		if err != nil {
			t.Fatal(err)
		}
		for i := range x.Extents {
			if _, err := x.Extent(i); err != nil {
				t.Fatal(err)
			}
		}
	})
}
