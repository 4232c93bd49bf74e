package erofs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lighter/format/tree"
	"lighter/test/testkit/golden"
)

// sample has one inode of each kind.
func sample() *tree.Node {
	shared := linked(file("two names"), 2)
	return dirOf(
		name("bin", symlink("usr/bin")),
		name("dev", dirOf(
			name("console", special(tree.ModeChar|0o600, unix.Mkdev(5, 1))),
			name("sda", special(tree.ModeBlock|0o660, unix.Mkdev(8, 300))),
			name("pipe", special(tree.ModeFIFO|0o644, 0)),
			name("socket", special(tree.ModeSocket|0o644, 0)),
		)),
		name("empty", file("")),
		name("etc", dirOf(name("hostname", file("lighter\n")), name("again", shared))),
		name("usr", dirOf(
			name("bin", dirOf(
				name("ping", with(onDevice(5000), x("security.capability", "\x01\x00\x00\x02\x00\x20"),
					x("user.empty", ""))),
				name("shared", shared),
				name("su", &tree.Node{Mode: tree.ModeRegular | 0o4755, UID: 65534, GID: 1 << 31, Nlink: 1}),
			)),
			name("tmp", with(dirOf(), x("system.posix_acl_default", "\x02\x00\x00\x00"))),
		)),
		name("\xff\xfe", file("not UTF-8")),
		name("-dash", file("before the dot")),
	)
}

func TestRoundTrip(t *testing.T) {
	full := strings.Repeat("v", maxXattr)
	for name, root := range map[string]*tree.Node{
		"only a root": dirOf(),
		"one of each": sample(),
		"xattrs": dirOf(name("most", with(file("f"), x("user.a", full), x("user.b", full), x("user.c", full),
			x("user.d", full[:65400])))),
		"long xattr":   dirOf(name("d", with(dirOf(name("f", file("x"))), x("user."+strings.Repeat("n", 250), full)))),
		"long xattr 2": dirOf(name("l", with(symlink("target"), x("trusted.x", full))), name("z", file("z"))),
		"long names":   dirOf(name(strings.Repeat("\xff", 255), file("a")), name(strings.Repeat("\xfe", 255), dirOf())),
		"around dots": dirOf(name("\x01", file("")), name("-", file("")), name(".\x01", file("")),
			name("...", file("")), name("..a", file("")), name(".a", file("")), name("/"[:0]+"0", file(""))),
		"big numbers": dirOf(name("c", special(tree.ModeChar, unix.Mkdev(4095, 1<<20-1))),
			name("b", special(tree.ModeBlock, unix.Mkdev(259, 70000)))),
		"late": dirOf(name("f", &tree.Node{Mode: tree.ModeRegular | 0o7777, UID: 1<<32 - 2, GID: 1<<32 - 2,
			Nlink: 1<<32 - 1, Mtime: when(1<<33, 999999999)})),
		"path of 4095": deep(4095),
		"larger":       larger(),
	} {
		t.Run(name, func(t *testing.T) { roundTrip(t, root) })
	}
}

// deep returns a tree with one path of that many bytes.
func deep(length int) *tree.Node {
	n := dirOf()
	for left := length; left > 0; {
		take := min(left, 256)
		if left-take == 1 {
			take-- // a slash alone is not a name
		}
		n = dirOf(name(strings.Repeat("d", take-1), n))
		left -= take
	}
	return n
}

func TestSizesOfFiles(t *testing.T) {
	for _, size := range []int64{1, 4095, 4096, 4097, 8192, 8193, 1<<32 - 1, 1 << 32, 1<<32 + 1,
		1 << 40, 1<<40 + 1, maxFile} {
		roundTrip(t, dirOf(name("before", onDevice(1)), name("f", onDevice(size)), name("z", onDevice(1))))
	}
}

// Data is inline if it ends within the inode's block, else in a separate block. Nothing overlaps,
// whatever precedes it.
func TestEndOfBlock(t *testing.T) {
	const room = BlockSize - inodeSize
	for size := room - 70; size <= maxLink; size++ {
		link := symlink(strings.Repeat("t", size))
		s, err := shapeOf(link)
		if err != nil {
			t.Fatal(err)
		}
		if (size <= room) != (s.format == inline && s.blocks == 0) ||
			(size > room) != (s.format == plain && s.blocks == 1) {
			t.Errorf("link of %d bytes has format %d and %d blocks, want it inline: %t", size, s.format, s.blocks,
				size <= room)
		}
		roundTrip(t, dirOf(name("a", file("a")), name("d", dirOf(names4k(int64(size))...)), name("s", link),
			name("z", file("z"))))
	}
	for size := 3900; size <= room; size++ {
		b, _ := roundTrip(t, dirOf(name("f", file(strings.Repeat("f", size))), name("z", file("z"))))
		// The root, f and z: z is in the root's block or in the next one.
		if want := 4; len(b) != want*BlockSize && size > room-96 {
			t.Errorf("inline file of %d bytes: image has %d blocks, want %d", size, len(b)/BlockSize, want)
		}
	}
}

// names4k returns names of empty files. With "." and "..", they take size bytes of directory
// blocks.
func names4k(size int64) (children []tree.Dirent) {
	size -= direntSize + 1 + direntSize + 2
	for i := 0; size > 0; i++ {
		take := min(size, direntSize+200)
		if rest := size - take; rest > 0 && rest <= direntSize {
			take -= 50
		}
		s := fmt.Sprintf("%04d", i)
		s = (s + strings.Repeat("n", 255))[:take-direntSize]
		children = append(children, name(s, file("")))
		size -= take
	}
	return children
}

func TestDirectoryBlocks(t *testing.T) {
	for _, c := range []struct {
		used, blocks int64 // bytes of the names; number of separate blocks
		format       uint16
	}{
		{BlockSize - inodeSize, 0, inline},
		{BlockSize - inodeSize + 1, 1, plain},
		{BlockSize, 1, plain},
		{BlockSize + 1, 1, inline},
	} {
		n := dirOf(names4k(c.used)...)
		s, err := shapeOf(n)
		if err != nil {
			t.Fatal(err)
		}
		if s.blocks != c.blocks || s.format != c.format {
			t.Errorf("names of %d bytes: %d blocks in format %d, want %d in %d", c.used, s.blocks, s.format,
				c.blocks, c.format)
		}
		roundTrip(t, dirOf(name("d", n)))
	}
}

func TestManyNames(t *testing.T) {
	var children []tree.Dirent
	for i := range 20_000 {
		children = append(children, name(fmt.Sprintf("%d", i*7919%20_000), file("")))
	}
	_, stats := roundTrip(t, dirOf(name("d", dirOf(children...)), name("e", file("e"))))
	if stats.Inodes != 20_003 {
		t.Errorf("got %d inodes, want %d", stats.Inodes, 20_003)
	}
}

func TestRandomTrees(t *testing.T) {
	for seed := range uint64(80) {
		r := rand.New(rand.NewPCG(seed, 1))
		roundTrip(t, randomTree(r, r.IntN(1<<r.IntN(10))))
		if t.Failed() {
			t.Fatalf("the tree of seed %d failed, as reported above", seed)
		}
	}
}

// The same tree gives the same bytes. Another tree has another UUID.
func TestDeterminism(t *testing.T) {
	one := randomTree(rand.New(rand.NewPCG(5, 5)), 2000)
	two := randomTree(rand.New(rand.NewPCG(5, 5)), 2000)
	_, a, _ := image(t, one)
	_, b, _ := image(t, two)
	if !bytes.Equal(a, b) {
		t.Error("two images of one tree differ")
	}
	m1, _, _ := image(t, dirOf(name("f", file("a"))))
	m2, _, _ := image(t, dirOf(name("f", file("b"))))
	if m1.super.uuid == m2.super.uuid {
		t.Error("images of different trees have the same UUID")
	}
}

// The bytes are part of the tree ID: a change that breaks this test needs a new format number.
func TestGolden(t *testing.T) {
	_, got, _ := image(t, sample())
	golden.Compare(t, "sample.golden", hexdump(got))
	// Of a larger image, with separate blocks, only the digest is stored.
	const digest = "f6e5ce1b71e1a59277d625a812e504b4feb315e8f51653a56119fa46d44ee630"
	_, b, _ := image(t, larger())
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != digest {
		t.Errorf("the image of the larger tree is %x, want %s", sum, digest)
	}
}

func larger() *tree.Node {
	var dirs []tree.Dirent
	for _, size := range []int64{100, 4000, 4032, 4033, 4096, 4097, 10_000, 100_000} {
		d := dirOf(append(names4k(size),
			name("file", onDevice(size)),
			name("link", symlink(strings.Repeat("t", int(min(size, maxLink))))),
			name("with xattrs", with(file("x"), x("user.v", strings.Repeat("v", int(min(size, maxXattr)))))),
		)...)
		dirs = append(dirs, name(fmt.Sprint(size), d))
	}
	return dirOf(dirs...)
}

// hexdump returns 16 bytes a line, without lines of zeros.
func hexdump(b []byte) string {
	var s strings.Builder
	for i := 0; i < len(b); i += 16 {
		if line := b[i : i+16]; !bytes.Equal(line, zeros[:16]) {
			fmt.Fprintf(&s, "%06x  % x  %s\n", i, line, strings.Map(printable, string(line)))
		}
	}
	fmt.Fprintf(&s, "%06x\n", len(b))
	return s.String()
}

func printable(r rune) rune {
	if r < ' ' || r > '~' {
		return '.'
	}
	return r
}

func TestWriteRefuses(t *testing.T) {
	twice := linked(file("x"), 2)
	for _, c := range []struct {
		root *tree.Node
		want error
		text string
	}{
		{dirOf(name(strings.Repeat("n", 256), file(""))), ErrTooLarge, "256 bytes"},
		{dirOf(name("a", dirOf(name("", file(""))))), ErrTooLarge, `"/a/"`},
		{dirOf(name("a", dirOf(name("b/c", file(""))))), nil, `"/a/b/c"`},
		{dirOf(name("..", file(""))), nil, `".."`},
		{dirOf(name("nul\x00", file(""))), nil, "NUL"},
		{dirOf(name("a", file("")), name("a", file(""))), nil, `comes after "a"`},
		{dirOf(name("l", symlink(strings.Repeat("t", 4096)))), ErrTooLarge, "4096 bytes"},
		{dirOf(name("l", symlink(""))), ErrTooLarge, "0 bytes"},
		{dirOf(name("l", symlink("a\x00b"))), nil, "NUL"},
		{dirOf(name("f", with(file(""), x("user.big", strings.Repeat("v", 65536))))), ErrTooLarge, "65536"},
		{dirOf(name("f", with(file(""), x("user.a", full()), x("user.b", full()), x("user.c", full()),
			x("user.d", full()), x("user.e", full())))), ErrTooLarge, "together"},
		{dirOf(name("f", with(file(""), x("user."+strings.Repeat("n", 251), "")))), ErrXattrName, "user.n"},
		{dirOf(name("f", with(file(""), x("user.", "")))), ErrXattrName, "user."},
		{dirOf(name("f", with(file(""), x("system.other", "")))), ErrXattrName, "system.other"},
		{dirOf(name("f", with(file(""), x("system.posix_acl_access2", "")))), ErrXattrName, "access2"},
		{dirOf(name("f", with(file(""), x("user.a\x00", "")))), ErrXattrName, "user.a"},
		{dirOf(name("f", with(file(""), x("user.a", ""), x("user.a", "")))), nil, "comes after"},
		{dirOf(name("f", file(strings.Repeat("c", 4033)))), ErrTooLarge, "4033"},
		{dirOf(name("f", onDevice(maxFile+1))), ErrTooLarge, "file of"},
		{dirOf(name("f", &tree.Node{Mode: tree.ModeRegular, Nlink: 1, Size: 5})), nil, "size is 5"},
		{dirOf(name("f", &tree.Node{Mode: tree.ModeRegular})), nil, "link count"},
		{dirOf(name("f", &tree.Node{Mode: tree.ModeRegular, Nlink: 1, UID: 1<<32 - 1})), ErrTooLarge, "owner"},
		{dirOf(name("f", &tree.Node{Mode: tree.ModeRegular, Nlink: 1, GID: 1<<32 - 1})), ErrTooLarge, "owner"},
		{dirOf(name("f", &tree.Node{Mode: 0o644, Nlink: 1})), nil, "file type"},
		{dirOf(name("f", &tree.Node{Mode: tree.ModeFIFO, Nlink: 1, Mtime: when(-1, 0)})), nil, "time"},
		{dirOf(name("f", &tree.Node{Mode: tree.ModeFIFO, Nlink: 1, Mtime: when(0, 1e9)})), nil, "time"},
		{dirOf(name("a", twice), name("b", twice), name("c", twice)), nil, "link count"},
		{deep(4096), ErrTooLarge, "path of more"},
		{file(""), nil, "root"},
	} {
		d := layOut(&tree.Tree{Root: c.root})
		var b bytes.Buffer
		_, err := Write(&b, &tree.Tree{Root: c.root}, d.size, d.place)
		if err == nil || !strings.Contains(err.Error(), c.text) || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("error is %v, want %q and %v", err, c.text, c.want)
		}
		if b.Len() > 0 {
			t.Errorf("error %v: got %d bytes written, want none", err, b.Len())
		}
	}
}

func full() string { return strings.Repeat("v", maxXattr) }

func TestWriteRefusesPlaces(t *testing.T) {
	at := func(offset uint64) func(*tree.Node) uint64 { return func(*tree.Node) uint64 { return offset } }
	root := &tree.Tree{Root: dirOf(name("f", onDevice(4097)))}
	for _, c := range []struct {
		size, offset uint64
	}{{8191, 0}, {4096, 0}, {12288, 1}, {12288, 8192}, {12288, 1 << 63}, {1 << 44, 0}} {
		if _, err := Write(&bytes.Buffer{}, root, c.size, at(c.offset)); err == nil {
			t.Errorf("a file at %d of a device of %d bytes was accepted, want an error", c.offset, c.size)
		}
	}
	if _, err := Write(&bytes.Buffer{}, root, 1<<44-BlockSize, at(1<<44-3*BlockSize)); err != nil {
		t.Error(err)
	}
}

type failingWriter struct{ left int }

func (w *failingWriter) Write(b []byte) (int, error) {
	if w.left -= len(b); w.left < 0 {
		return 0, os.ErrClosed
	}
	return len(b), nil
}

func TestWriteReturnsTheWritersError(t *testing.T) {
	root := randomTree(rand.New(rand.NewPCG(3, 3)), 5000)
	d := layOut(&tree.Tree{Root: root})
	for _, left := range []int{0, 300 << 10} {
		_, err := Write(&failingWriter{left}, &tree.Tree{Root: root}, d.size, d.place)
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("a writer that fails after %d bytes: got %v, want its error", left, err)
		}
	}
}

func TestWalkStops(t *testing.T) {
	m, _, _ := image(t, sample())
	seen := 0
	_, err := m.Walk(context.Background(), func(string, Inode) error {
		seen++
		if seen == 3 {
			return os.ErrExist
		}
		return nil
	})
	if err != os.ErrExist || seen != 3 {
		t.Errorf("got %v after %d names, want visit's error after 3", err, seen)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := m.Walk(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: got %v, want context.Canceled", err)
	}
}
