package index

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/format/tree"
)

func id(n int) chunk.ID { return chunk.Sum([]byte(fmt.Sprint(n))) }

// file is a regular file of the given pieces: positive a chunk of that length,
// negative a hole.
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

// made makes an index and returns it with its whole bytes.
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
	inline := &tree.Node{Mode: tree.ModeRegular | 0o600, Nlink: 2, Size: 3, Content: tree.Content{Inline: []byte("abc")}}
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
	if want := int64(2+20+2+16) * PageSize; m.DeviceSize != want {
		t.Errorf("the device has %d bytes, want %d", m.DeviceSize, want)
	}
	if m.Files != 7 || m.Bytes != 2*4203+78392+5000+65536+3 {
		t.Errorf("%d files of %d bytes", m.Files, m.Bytes)
	}
	if m.Extents != 5 || m.DistinctChunks != 5 || m.DistinctBytes != 4203+200+5000 {
		t.Errorf("%d extents, %d chunks of %d bytes", m.Extents, m.DistinctChunks, m.DistinctBytes)
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
		t.Errorf("received %+v with %d and %d bytes", h, extents.Len(), metadata.Len())
	}
	if chunk.Sum(metadata.Bytes()) != h.Metadata {
		t.Error("another metadata image came out")
	}
	x, err := OpenMap(bytes.NewReader(extents.Bytes()), m.ID())
	if err != nil {
		t.Fatal(err)
	}
	var refs []chunk.Ref
	if err := m.Refs(func(i int64, ref chunk.Ref) error { refs = append(refs, ref); return nil }); err != nil {
		t.Fatal(err)
	}
	for i, ref := range refs {
		if e, err := x.Extent(int64(i)); err != nil || e.ID != ref.ID || e.Length != ref.Length {
			t.Errorf("extent %d is %v, error %v", i, e, err)
		}
	}
	if _, err := x.Extent(5); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("an extent that is not there: %v", err)
	}
}

// many is a tree of n files with one to three chunks each.
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
	x, err := OpenMap(bytes.NewReader(extents.Bytes()), m.ID())
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

// Whatever bit flips on the way or on the disk, it is an error.
func TestEveryBitIsVerified(t *testing.T) {
	m, whole := made(t, sample(t))
	r := rand.New(rand.NewPCG(3, 3))
	for range 2000 {
		b := bytes.Clone(whole)
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		if _, err := Receive(bytes.NewReader(b), m.ID(), io.Discard, io.Discard); err == nil {
			t.Fatal("a flipped bit was accepted")
		}
	}
	for _, n := range []int{0, 10, HeaderSize, HeaderSize + 5, len(whole) - 1} {
		if _, err := Receive(bytes.NewReader(whole[:n]), m.ID(), io.Discard, io.Discard); err == nil {
			t.Errorf("an index cut to %d bytes was accepted", n)
		}
	}
	if _, err := Receive(bytes.NewReader(append(whole, 0)), m.ID(), io.Discard, io.Discard); err == nil {
		t.Error("a byte too many was accepted")
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
		if at >= HeaderSize+pageEntrySize && at < PageSize {
			continue // padding before the pages: nobody reads it
		}
		b[at] ^= 1 << r.IntN(8)
		x, err := OpenMap(bytes.NewReader(b), m.ID())
		if err != nil {
			continue
		}
		if _, err := x.Extent(0); err == nil {
			t.Fatalf("byte %d flipped on the disk was accepted", at)
		}
		if _, err := x.Find(0); err == nil {
			t.Fatalf("byte %d flipped on the disk was accepted", at)
		}
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
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestGolden(t *testing.T) {
	m, whole := made(t, sample(t))
	path := filepath.Join("testdata", "index.golden")
	text := fmt.Sprintf("tree ID %s\n%s", m.ID(), hex.Dump(whole[:m.MapSize()]))
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("the index format changed: tree ID %s", m.ID())
	}
}

func TestLocations(t *testing.T) {
	units := []chunk.Unit{{Pack: id(1), N: 0}, {Pack: id(1), N: 1}, {}, {Pack: id(2), N: 7}, {Pack: id(1), N: 1}}
	b := NewLocations(id(9))
	for _, u := range units {
		b.Add(u)
	}
	enc := b.Encode()
	l, err := OpenLocations(bytes.NewReader(enc), int64(len(enc)), id(9), int64(len(units)))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range units {
		if got, err := l.Unit(int64(i)); err != nil || got != want {
			t.Errorf("location %d is %v, error %v; want %v", i, got, err, want)
		}
	}
	if _, err := l.Unit(5); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("a location that is not there: %v", err)
	}
	open := func(b []byte, tree chunk.ID, n int64) error {
		_, err := OpenLocations(bytes.NewReader(b), int64(len(b)), tree, n)
		return err
	}
	if open(enc, id(8), 5) == nil || open(enc, id(9), 4) == nil || open(enc[:len(enc)-1], id(9), 5) == nil || open(enc[:20], id(9), 5) == nil {
		t.Error("locations that do not fit were accepted")
	}
	if path := filepath.Join("testdata", "locations.golden"); os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(hex.Dump(enc)), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want, err := os.ReadFile(path); err != nil || hex.Dump(enc) != string(want) {
		t.Errorf("the format of locations changed (%v)", err)
	}
}

func TestStatement(t *testing.T) {
	key := ed25519.NewKeyFromSeed(make([]byte, 32))
	public := key.Public().(ed25519.PublicKey)
	other := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32)).Public().(ed25519.PublicKey)
	chain := "sha256:" + id(1).String()
	s := Sign(key, chain, id(2))
	if err := s.Verify(chain, []ed25519.PublicKey{other, public}); err != nil {
		t.Error(err)
	}
	if got := hex.EncodeToString(s.Signature[:8]); got != "d20ac9c0de37ebdb" && os.Getenv("UPDATE_GOLDEN") == "" {
		t.Errorf("the signed message changed: signature %s…", got)
	}
	forged := s
	forged.Tree = id(3)
	newer := s
	newer.Format = 2
	for name, err := range map[string]error{
		"another key":   s.Verify(chain, []ed25519.PublicKey{other}),
		"no key":        s.Verify(chain, nil),
		"a short key":   s.Verify(chain, []ed25519.PublicKey{public[:5]}),
		"another tree":  forged.Verify(chain, []ed25519.PublicKey{public}),
		"another chain": s.Verify("sha256:"+id(5).String(), []ed25519.PublicKey{public}),
		"newer format":  newer.Verify(chain, []ed25519.PublicKey{public}),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	text := FormatKey(public)
	if back, err := ParseKey(text); err != nil || !back.Equal(public) {
		t.Errorf("ParseKey(%q) = %v, %v", text, back, err)
	}
	for _, bad := range []string{"", "ed25519:", "ed25519:AAAA", strings.TrimPrefix(text, "ed25519:"), text + "="} {
		if _, err := ParseKey(bad); err == nil {
			t.Errorf("ParseKey(%q) succeeded", bad)
		}
	}
}

func FuzzReceive(f *testing.F) {
	m, whole := made(f, sample(f))
	f.Add(whole)
	f.Add(whole[:HeaderSize])
	f.Fuzz(func(t *testing.T, b []byte) {
		// The right name for whatever header comes: so the parts behind it are
		// reached.
		name := m.ID()
		if len(b) >= HeaderSize {
			name = chunk.Sum(b[:HeaderSize])
		}
		var extents bytes.Buffer
		if _, err := Receive(bytes.NewReader(b), name, &extents, io.Discard); err != nil {
			return
		}
		x, err := OpenMap(bytes.NewReader(extents.Bytes()), name)
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

// FuzzDecodePage reaches the extents, whose digests a fuzzer cannot guess.
func FuzzDecodePage(f *testing.F) {
	e := Extent{Offset: 4096, Length: 7, First: true, ID: id(1)}
	f.Add(e.append(nil), int64(4096))
	f.Fuzz(func(t *testing.T, b []byte, first int64) {
		page := make([]byte, PageSize)
		n := min(copy(page, b)/extentSize, PageExtents)
		extents, err := decodePage(page, n, first, 1<<40)
		if err != nil {
			return
		}
		at := int64(0)
		for _, e := range extents {
			if e.Offset < at || e.Length == 0 || e.End() > 1<<40 {
				t.Fatalf("extent %v behind %d was accepted", e, at)
			}
			at = e.End()
		}
	})
}

func FuzzOpenLocations(f *testing.F) {
	b := NewLocations(id(9))
	b.Add(chunk.Unit{Pack: id(1), N: 3})
	f.Add(b.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := OpenLocations(bytes.NewReader(b), int64(len(b)), id(9), 1)
		if err != nil {
			return
		}
		_, _ = l.Unit(0)
	})
}
