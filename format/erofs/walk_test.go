package erofs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"lighter/format/tree"
)

// edited is an image that a test damages.
type edited struct {
	*testing.T
	b    []byte
	nids map[string]uint64
}

func edit(t *testing.T, root *tree.Node) *edited {
	t.Helper()
	m, b, _ := image(t, root)
	e := &edited{t, b, map[string]uint64{}}
	if _, err := m.Walk(context.Background(), func(path string, in Inode) error {
		e.nids[path] = in.Nid
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return e
}

// at returns the image from the inode of a path on.
func (e *edited) at(path string) []byte {
	nid, ok := e.nids[path]
	if !ok {
		e.Fatalf("the image has no %s", path)
	}
	return e.b[nid*nidUnit:]
}

// entry returns the dirent of a path in an inline directory without xattrs.
func (e *edited) entry(p string) []byte {
	dir := e.at(path.Dir(p))[inodeSize:]
	for i := 0; ; i += direntSize {
		if nid := binary.LittleEndian.Uint64(dir[i:]); nid == e.nids[p] {
			return dir[i:]
		}
	}
}

func (e *edited) put16(b []byte, v uint16) { binary.LittleEndian.PutUint16(b, v) }
func (e *edited) put32(b []byte, v uint32) { binary.LittleEndian.PutUint32(b, v) }
func (e *edited) put64(b []byte, v uint64) { binary.LittleEndian.PutUint64(b, v) }

func (e *edited) replace(old, with string) {
	i := bytes.Index(e.b, []byte(old))
	if i < 0 || len(old) != len(with) {
		e.Fatalf("replace %q by %q: want the first in the image, and both of one length", old, with)
	}
	copy(e.b[i:], with)
}

// entries replaces the entries of a directory.
func (e *edited) entries(path string, entries ...dirent) {
	var p dirPacker
	for _, d := range entries {
		if err := p.add(d, nil); err != nil {
			e.Fatal(err)
		}
	}
	b := p.finish()
	copy(e.at(path)[inodeSize:], b)
	e.put64(e.at(path)[8:], uint64(len(b)))
}

func seal(b []byte) {
	binary.LittleEndian.PutUint32(b[superOffset+4:], superChecksum(b[:BlockSize]))
}

func (e *edited) check() error {
	m, err := Open(bytes.NewReader(e.b), int64(len(e.b)))
	if err != nil {
		return err
	}
	_, err = m.Walk(context.Background(), nil)
	return err
}

func victim() *tree.Node {
	two := linked(file("two"), 2)
	return dirOf(
		name("dir", dirOf(name("sub", dirOf(name("deep", file("deep")))), name("two", two), name("zz", file("z")))),
		name("fifo", special(tree.ModeFIFO, 0)),
		name("file", file("inline")),
		name("large", onDevice(10_000)),
		name("link", symlink("some/target")),
		name("long", symlink(strings.Repeat("t", 4090))),
		name("many", dirOf(names4k(9000)...)),
		name("more", dirOf(names4k(9000)...)),
		name("two", two),
		name("xattrs", with(file("f"), x("trusted.b", "12345678"), x("user.a", "1234"))),
	)
}

func TestWalkRefuses(t *testing.T) {
	const entryType, entryOff = 10, 8
	for _, c := range []struct {
		what, text string
		spoil      func(e *edited)
	}{
		{"magic", "magic", func(e *edited) { e.b[superOffset]++ }},
		{"checksum", "checksum", func(e *edited) { e.b[superOffset+5]++ }},
		{"feature", "features", func(e *edited) { e.b[superOffset+0x50] |= 0x40; seal(e.b) }},
		{"block size", "byte 1036", func(e *edited) { e.b[superOffset+0x0c]++; seal(e.b) }},
		{"root nid", "byte 1038", func(e *edited) { e.b[superOffset+0x0e]++; seal(e.b) }},
		{"xattr prefixes", "byte 1115", func(e *edited) { e.b[superOffset+0x5b]++; seal(e.b) }},
		{"second device", "byte 1280", func(e *edited) { e.b[1280]++; seal(e.b) }},
		{"blocks", "superblock says", func(e *edited) { e.b[superOffset+0x24]++; seal(e.b) }},
		{"inodes", "superblock says", func(e *edited) { e.b[superOffset+0x10]++; seal(e.b) }},
		{"cut", "superblock says", func(e *edited) { e.b = e.b[:len(e.b)-BlockSize] }},
		{"not of blocks", "size is", func(e *edited) { e.b = e.b[:len(e.b)-1] }},
		{"one block", "size is", func(e *edited) { e.b = e.b[:BlockSize] }},

		{"root is a file", `"/" (nid 128): mode`, func(e *edited) { e.put16(e.at("/")[4:], tree.ModeFIFO) }},
		{"reserved", `"/file" (nid`, func(e *edited) { e.at("/file")[63] = 1 }},
		{"compact", "are inconsistent", func(e *edited) { e.at("/file")[0] &^= 1 }},
		{"compressed", "are inconsistent", func(e *edited) { e.at("/file")[0] = 3<<1 | 1 }},
		{"plain file", "are inconsistent", func(e *edited) { e.at("/file")[0] = byte(plain) }},
		{"no type", "are inconsistent", func(e *edited) { e.put16(e.at("/file")[4:], 0o644) }},
		{"other type", `"/file" (nid`, func(e *edited) { e.entry("/file")[entryType] = 2 }},
		{"negative size", "size is", func(e *edited) { e.put64(e.at("/file")[8:], 1<<63) }},
		{"inline across blocks", "cross the end", func(e *edited) { e.put64(e.at("/file")[8:], 4000) }},
		{"inline of two blocks", "cross the end", func(e *edited) { e.put64(e.at("/file")[8:], 5000) }},
		{"inline over the next", "overlaps", func(e *edited) { e.put64(e.at("/file")[8:], 100) }},
		{"no links", "link count", func(e *edited) { e.put32(e.at("/file")[44:], 0) }},
		{"directory of one link", `"/dir" (nid`, func(e *edited) { e.put32(e.at("/dir")[44:], 1) }},
		{"no user", "owner", func(e *edited) { e.put32(e.at("/file")[24:], 1<<32-1) }},
		{"no group", "owner", func(e *edited) { e.put32(e.at("/file")[28:], 1<<32-1) }},
		{"time", "time of", func(e *edited) { e.put32(e.at("/file")[40:], 1e9) }},
		{"negative time", "time of", func(e *edited) { e.put64(e.at("/file")[32:], 1<<63) }},
		{"FIFO with size", "are inconsistent", func(e *edited) { e.at("/fifo")[8] = 1 }},
		{"FIFO with number", "device number", func(e *edited) { e.at("/fifo")[16] = 1 }},

		{"beyond the device", "beyond the device", func(e *edited) { e.put32(e.at("/large")[68:], 1) }},
		{"hole", "beyond the device", func(e *edited) { e.put32(e.at("/large")[68:], 0xffffffff) }},
		{"device 2", "device 1", func(e *edited) { e.at("/large")[66] = 2 }},
		{"device 0", "device 1", func(e *edited) { e.at("/large")[66] = 0 }},
		{"block above 32 bits", "device 1", func(e *edited) { e.at("/large")[64] = 1 }},
		{"chunk format", "chunk format", func(e *edited) { e.at("/large")[16]++ }},
		{"no chunk index", "chunk format", func(e *edited) { e.at("/large")[16] &^= 0x20 }},
		{"empty on the device", "on the device", func(e *edited) { e.put64(e.at("/large")[8:], 0) }},
		{"larger than the format", "on the device", func(e *edited) { e.put64(e.at("/large")[8:], maxFile+1) }},
		{"larger than the device", "beyond the device", func(e *edited) { e.put64(e.at("/large")[8:], 3*BlockSize+1) }},

		{"NUL in a target", "NUL", func(e *edited) { e.replace("some/target", "some\x00target") }},
		{"empty target", "are inconsistent", func(e *edited) { e.put64(e.at("/link")[8:], 0) }},
		{"target of 4096", "target of 4096", func(e *edited) { e.put64(e.at("/long")[8:], 4096) }},
		{"target outside", "not in the image", func(e *edited) { e.put32(e.at("/long")[16:], 1<<20) }},
		{"target in block 0", "not in the image", func(e *edited) { e.put32(e.at("/long")[16:], 0) }},
		{"target over a directory", "overlaps", func(e *edited) { copy(e.at("/more")[16:20], e.at("/long")[16:20]) }},

		{"shared xattrs", "header", func(e *edited) { e.at("/xattrs")[64+4] = 1 }},
		{"empty xattrs", "for xattrs is empty", func(e *edited) { e.put16(e.at("/xattrs")[2:], 1) }},
		{"xattrs cut", "beyond its inode's", func(e *edited) { e.at("/xattrs")[2]-- }},
		{"xattr too long", "beyond its inode's", func(e *edited) { e.put16(e.at("/xattrs")[64+12+2:], 60000) }},
		{"xattr index", "name index 9", func(e *edited) { e.at("/xattrs")[64+12+1] = 9 }},
		{"long xattr prefix", "name index 132", func(e *edited) { e.at("/xattrs")[64+12+1] |= 0x80 }},
		{"xattr without a name", "name index 4", func(e *edited) { e.put32(e.at("/xattrs")[64+12:], 9<<16|4<<8) }},
		{"xattrs out of order", "comes after", func(e *edited) { e.at("/xattrs")[64+12+1] = 1 }},
		{"xattrs beyond the image", "not in the image", func(e *edited) { e.put16(e.at("/xattrs")[2:], 65535) }},

		{"nid 0", "no inode can be at this nid", func(e *edited) { e.put64(e.entry("/file"), 0) }},
		{"nid outside", "no inode can be at this nid", func(e *edited) { e.put64(e.entry("/file"), 1<<40) }},
		{"nid across blocks", "no inode can be at this nid", func(e *edited) { e.put64(e.entry("/file"), 255) }},
		{"inode in a name", "", func(e *edited) { e.put64(e.entry("/file"), e.nids["/"]+2) }},
		{"one inode twice", "overlaps", func(e *edited) { e.put64(e.entry("/dir/zz"), e.nids["/file"]) }},
		{"third name", `more names`, func(e *edited) { e.put64(e.entry("/dir/zz"), e.nids["/two"]) }},
		{"type of a link", `elsewhere`, func(e *edited) { e.entry("/dir/two")[entryType] = 7 }},
		{"directory in itself", `"/dir/sub" (nid`, func(e *edited) { e.put64(e.entry("/dir/sub"), e.nids["/dir"]) }},
		{"root in the tree", `"/dir/sub" (nid`, func(e *edited) { e.put64(e.entry("/dir/sub"), rootNid) }},
		{"directory twice", `overlaps`, func(e *edited) { e.put64(e.entry("/more"), e.nids["/many"]) }},
		{"wrong dot", `"/dir/" (nid`, func(e *edited) { e.at("/dir")[64]++ }},
		{"wrong dots", `".." is nid`, func(e *edited) { e.at("/dir")[64+12]++ }},
		{"no dot", `"." or ".."`, func(e *edited) {
			e.entries("/dir/sub", dirent{"..", e.nids["/dir"], 2}, dirent{"deep", e.nids["/dir/sub/deep"], 1})
		}},
		{"no dots", `"." or ".."`, func(e *edited) {
			e.entries("/dir/sub", dirent{".", e.nids["/dir/sub"], 2}, dirent{"deep", e.nids["/dir/sub/deep"], 1})
		}},
		{"slash", `slash`, func(e *edited) { e.replace("subtwozz", "s/btwozz") }},
		{"NUL in a name", "", func(e *edited) { e.replace("subtwozz", "s\x00btwozz") }},
		{"names out of order", `name "two" comes after "xub"`, func(e *edited) { e.replace("subtwozz", "xubtwozz") }},
		{"same name", `comes after`, func(e *edited) { e.replace("subtwozz", "twotwozz") }},
		{"order across blocks", `comes after`, func(e *edited) { e.replace("0000nnn", "\xff000nnn") }},
		{"third dots", "", func(e *edited) { e.replace("filelargelink", "..lelargelink") }},
		{"empty directory", "are inconsistent", func(e *edited) { e.put64(e.at("/dir")[8:], 0) }},
		{"directory of a byte", "has no entry", func(e *edited) { e.put64(e.at("/dir")[8:], 1) }},
		{"huge directory", "", func(e *edited) { e.put64(e.at("/many")[8:], 1<<62) }},
		{"names at 0", "names of a block", func(e *edited) { e.put16(e.at("/dir")[64+entryOff:], 0) }},
		{"names outside", "names of a block", func(e *edited) { e.put16(e.at("/dir")[64+entryOff:], 60000) }},
		{"names at 13", "names of a block", func(e *edited) { e.put16(e.at("/dir")[64+entryOff:], 13) }},
		{"name outside", "has a name from", func(e *edited) { e.put16(e.at("/dir")[64+12+entryOff:], 4000) }},
		{"name backwards", "has a name from", func(e *edited) { e.put16(e.at("/dir")[64+24+entryOff:], 60) }},
		{"reserved of an entry", "reserved", func(e *edited) { e.entry("/file")[11] = 1 }},
	} {
		e := edit(t, victim())
		c.spoil(e)
		if err := e.check(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: error is %v, want %q", c.what, err, c.text)
		}
	}
}

// The memory of a walk is limited: for pending directories, and for inodes with several names.
func TestWalkBoundsItsMemory(t *testing.T) {
	two := linked(file("two"), 2)
	m, _, _ := image(t, dirOf(
		name("a", dirOf(name("cc", two), name("deep", dirOf(name("f", file("f")))))),
		name("b", dirOf(name("two", two))),
	))
	// The walk needs the most memory when it has met deep: for b, for the link and for deep.
	const need = dirMemory + int64(len("b")) + linkMemory + dirMemory + int64(len("deep"))
	for bound, want := range map[int64]bool{need: true, need - 1: false} {
		c := m.checker(nil)
		c.free = bound
		if err := c.run(context.Background()); (err == nil) != want || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("with %d bytes: got %v, want success: %t", bound, err, want)
		}
	}
}

// countingReader counts the bytes that are read.
type countingReader struct {
	*bytes.Reader
	read int64
}

func (r *countingReader) ReadAt(b []byte, offset int64) (int, error) {
	n, err := r.Reader.ReadAt(b, offset)
	r.read += int64(n)
	return n, err
}

// The work of a walk is linear in the size of the image, even if a few inodes with large xattrs
// have most of its names.
func TestWalkReadsInodesWithManyNamesOnce(t *testing.T) {
	const files, names = 8, 4000
	// An inode has 64 blocks, so that the pager, of 256 blocks, cannot cache all eight.
	large := strings.Repeat("v", 65_503)
	var shared []*tree.Node
	for range files {
		shared = append(shared, linked(with(file("f"), x("user.a", large), x("user.b", large), x("user.c", large),
			x("user.d", large+"last")), names/files))
	}
	var children []tree.Dirent
	for i := range names {
		children = append(children, name(fmt.Sprintf("%04d", i), shared[i%files]))
	}
	_, b, _ := image(t, dirOf(children...))
	seen, withXattrs := 0, 0
	for _, c := range []struct {
		visit func(string, Inode) error
		most  int64 // bytes read
	}{
		{nil, 2 * int64(len(b))},
		{func(_ string, in Inode) error {
			seen++
			withXattrs += min(len(in.Xattrs), 1)
			return nil
		}, 2*int64(len(b)) + 2*names*BlockSize},
	} {
		r := &countingReader{Reader: bytes.NewReader(b)}
		m, err := Open(r, int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Walk(context.Background(), c.visit); err != nil || r.read > c.most {
			t.Errorf("read %d bytes of an image of %d, want at most %d (%v)", r.read, len(b), c.most, err)
		}
	}
	if seen != 1+names || withXattrs != files {
		t.Errorf("visited %d names, %d with xattrs, want %d and %d", seen, withXattrs, 1+names, files)
	}
}

type failingReader struct {
	*bytes.Reader
	from int64
}

func (r failingReader) ReadAt(b []byte, offset int64) (int, error) {
	if offset+int64(len(b)) > r.from {
		return 0, io.ErrClosedPipe
	}
	return r.Reader.ReadAt(b, offset)
}

// An image that cannot be read is not reported as invalid.
func TestWalkReturnsTheReadersError(t *testing.T) {
	_, b, _ := image(t, victim())
	for from := int64(0); from < int64(len(b)); from += BlockSize {
		m, err := Open(failingReader{bytes.NewReader(b), from}, int64(len(b)))
		if err == nil {
			_, err = m.Walk(context.Background(), nil)
		}
		if !errors.Is(err, io.ErrClosedPipe) || errors.Is(err, ErrInvalid) {
			t.Errorf("unreadable from byte %d on: got %v, want the reader's error", from, err)
		}
	}
}

// rebuild returns the tree of an image.
func rebuild(m *Image) (*tree.Node, *device, error) {
	d := &device{places: map[*tree.Node]uint64{}, size: uint64(m.super.deviceBlocks) * BlockSize}
	children := map[string][]tree.Dirent{}
	nodes := map[uint64]*tree.Node{}
	dirs := map[string]*tree.Node{}
	_, err := m.Walk(context.Background(), func(p string, in Inode) error {
		n := nodes[in.Nid]
		if n == nil {
			n = &tree.Node{Mode: in.Mode, UID: in.UID, GID: in.GID, Nlink: in.Nlink, Mtime: in.Mtime,
				Rdev: in.Rdev, Size: in.Size, Link: in.Link, Xattrs: in.Xattrs}
			n.Content.Inline = in.Inline
			nodes[in.Nid] = n
		}
		if in.Device {
			n.Content.Extents = []tree.Extent{{Length: in.Size}}
			d.places[n] = in.Address
		}
		if n.IsDir() {
			dirs[p] = n
		}
		if dir, base := path.Split(p); base != "" {
			dir = "/" + strings.Trim(dir, "/")
			children[dir] = append(children[dir], name(base, n))
		}
		return nil
	})
	for p, n := range dirs {
		nlink := n.Nlink
		*n = *tree.NewDir(*n, children[p])
		n.Nlink = nlink
	}
	return dirs["/"], d, err
}

// survives checks a damaged image. If Walk accepts it, Write can write its tree, and Walk finds the
// same tree in the result.
func survives(t *testing.T, b []byte) (accepted bool) {
	t.Helper()
	seal(b)
	m, err := Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return false
	}
	finder := m.Finder()
	for _, path := range []string{"/", "/a/b", "/d/x/y"} { // must not panic
		_, _ = finder.Find(path)
		_, _ = finder.Names(path, 10)
	}
	stats, err := m.Walk(context.Background(), nil)
	if err != nil {
		if !errors.Is(err, ErrInvalid) {
			t.Fatal(err)
		}
		return false
	}
	root, d, err := rebuild(m)
	if err != nil {
		t.Fatalf("the second walk failed: %v", err)
	}
	var again bytes.Buffer
	size, err := Write(&again, &tree.Tree{Root: root}, d.size, d.place)
	if err != nil {
		t.Fatalf("Write rejects a tree that Walk accepts: %v", err)
	}
	if m, err = Open(bytes.NewReader(again.Bytes()), size); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Walk(context.Background(), nil); err != nil || got != stats {
		t.Fatalf("the rewritten image has %+v, %v; want %+v", got, err, stats)
	}
	return true
}

// The input is a list of edits to one of a few images, 4 bytes each: offset and value. Fuzzing
// whole images finds little.
func FuzzWalk(f *testing.F) {
	var images [][]byte
	for i, root := range []*tree.Node{dirOf(), sample(), victim(), randomTree(rand.New(rand.NewPCG(1, 9)), 20)} {
		_, b, _ := image(f, root)
		images = append(images, b)
		f.Add(uint8(i), []byte{})
	}
	f.Add(uint8(1), []byte("\x00\x10\x03\x41\x00\x10\x44\x05"))
	f.Fuzz(func(t *testing.T, which uint8, edits []byte) {
		b := bytes.Clone(images[int(which)%len(images)])
		for ; len(edits) >= 4; edits = edits[4:] {
			b[(int(edits[0])<<16|int(edits[1])<<8|int(edits[2]))%len(b)] = edits[3]
		}
		survives(t, b)
	})
}

// The test damages fields of inodes, directory entries and xattrs, with values of other fields and
// values at limits.
func TestDamage(t *testing.T) {
	accepted, rounds := 0, 1_000
	_, whole, _ := image(t, victim())
	for seed := range uint64(rounds) {
		r := rand.New(rand.NewPCG(seed, 3))
		b := bytes.Clone(whole)
		for range 1 + r.IntN(3) {
			at := BlockSize + 2*r.IntN((len(b)-BlockSize-8)/2)
			if r.IntN(3) > 0 {
				at = BlockSize + nidUnit*r.IntN((len(b)-BlockSize)/nidUnit-3) + 2*r.IntN(48)
			}
			n := 1 << r.IntN(4)
			switch from := BlockSize + 2*r.IntN((len(b)-BlockSize-8)/2); r.IntN(4) {
			case 0:
				copy(b[at:at+n], b[from:])
			case 1:
				b[at] ^= 1 << r.IntN(8)
			case 2:
				b[at] += byte(r.IntN(5) - 2)
			default:
				edge := []uint64{0, 1, 1 << 12, 1 << 16, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1<<63 - 1, 1<<64 - 1}
				var v [8]byte
				binary.LittleEndian.PutUint64(v[:], edge[r.IntN(len(edge))])
				copy(b[at:at+n], v[:])
			}
		}
		if survives(t, b) {
			accepted++
		}
	}
	if accepted == 0 || accepted == rounds {
		t.Errorf("%d of %d damaged images were accepted, want some and not all", accepted, rounds)
	}
	t.Logf("%d of %d damaged images were accepted", accepted, rounds)
}
