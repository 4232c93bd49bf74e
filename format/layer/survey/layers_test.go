package survey

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	mathbits "math/bits"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/tree"
)

// text returns n bytes that compress as source code does.
func text(seed uint64, n int) []byte {
	random := rand.New(rand.NewPCG(seed, 1))
	var b bytes.Buffer
	for b.Len() < n {
		fmt.Fprintf(&b, "func word%d(x int) { return %d }\n", random.IntN(3000), random.IntN(1e6))
	}
	return b.Bytes()[:n]
}

func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	random := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = random.Read(b) // never fails
	return b
}

// file is an entry of a test's layer.
type file struct {
	header  tar.Header
	content []byte
}

func regular(name string, parts ...[]byte) file {
	return file{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, bytes.Join(parts, nil)}
}

// archive returns a tar stream with a padded end.
func archive(t testing.TB, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		f.header.Size = int64(len(f.content))
		f.header.ModTime = time.Unix(1_700_000_000, 0)
		if err := w.WriteHeader(&f.header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return append(b.Bytes(), make([]byte, 20<<10)...)
}

// odd returns a tar stream with small and large files, holes, links, repetitions and whiteouts.
func odd(t testing.TB) []byte {
	files := []file{
		{tar.Header{Typeflag: tar.TypeDir, Name: "usr/", Mode: 0o755}, nil},
		regular("usr/empty"),
		regular("usr/inline", text(1, tree.InlineLimit)),
		regular("usr/large", noise(2, 2<<20), text(2, 4<<20)),
		regular("usr/hole", text(3, 100_000), make([]byte, 6<<20), noise(3, 300_000)),
		regular("usr/zeros", make([]byte, 1<<20)),
		regular("usr/same", text(1, 70_000)),
		regular("usr/same-again", text(1, 70_000)),
		regular("usr/.wh.gone", text(4, 50_000)),
		regular("usr/repeated", bytes.Repeat([]byte("lighter"), 200_000)),
		{tar.Header{Typeflag: tar.TypeSymlink, Name: "usr/link", Linkname: "large"}, nil},
		{tar.Header{Typeflag: tar.TypeLink, Name: "usr/hard", Linkname: "usr/large"}, nil},
		{tar.Header{Typeflag: tar.TypeReg, Name: "usr/" + strings.Repeat("long", 60), Mode: 0o755,
			PAXRecords: map[string]string{"SCHILY.xattr.user.a": "b"}}, text(5, 5000)},
	}
	for i := range 300 {
		files = append(files, regular(fmt.Sprintf("usr/lib/%d", i), text(uint64(i), 40*i)))
	}
	return archive(t, files...)
}

// gzipped compresses plain bytes, as one member for each size bytes. It flushes between them if
// they are one member.
func gzipped(t testing.TB, plain []byte, level, size int, flush bool) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, level)
	if err != nil {
		t.Fatal(err)
	}
	for len(plain) > 0 {
		n := min(size, len(plain))
		_, err = w.Write(plain[:n])
		if plain = plain[n:]; flush {
			err = errors.Join(err, w.Flush())
		} else if err = errors.Join(err, w.Close()); len(plain) > 0 {
			w.Reset(&b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if flush {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// zstded compresses plain bytes, as one frame for each size bytes. Frames to skip are between them.
func zstded(t testing.TB, plain []byte, size int) (b []byte) {
	t.Helper()
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	for len(plain) > 0 {
		n := min(size, len(plain))
		b = w.EncodeAll(plain[:n], b)
		b = append(b, 0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3)
		plain = plain[n:]
	}
	return b
}

// layers returns layers of all kinds of a tar stream.
func layers(t testing.TB, plain []byte) map[string][]byte {
	return map[string][]byte{
		"plain":        plain,
		"gzip -1":      gzipped(t, plain, 1, len(plain), false),
		"gzip -9":      gzipped(t, plain, 9, len(plain), false),
		"gzip stored":  gzipped(t, plain, 0, len(plain), false),
		"flushed":      gzipped(t, plain, 6, 128<<10, true),
		"members":      gzipped(t, plain, 6, 100_000, false),
		"tiny members": gzipped(t, plain[:1<<20], 1, 1000, false),
		"frames":       zstded(t, plain, 1<<20),
		"large frames": zstded(t, plain, 5<<20),
		"small frames": zstded(t, plain, 30_000),
		"tiny frames":  zstded(t, plain[:1<<20], 1000),
	}
}

// sparse returns a tar stream with a sparse file (PAX 1.0).
func sparse(t testing.TB) []byte {
	t.Helper()
	data := noise(1, 2048)
	spans := "2\n0\n1024\n4096\n1024\n"
	content := append(append([]byte(spans), make([]byte, 512-len(spans))...), data...)
	f := regular("sparse", content)
	f.header.PAXRecords = map[string]string{"XNU.sparse.major": "1", "XNU.sparse.minor": "0",
		"XNU.sparse.name": "sparse", "XNU.sparse.realsize": "5120"}
	// archive/tar writes no such records, so their names are changed afterwards.
	return bytes.ReplaceAll(archive(t, f), []byte("XNU.sparse"), []byte("GNU.sparse"))
}

// oneBlock returns a layer with a file of 20 MB, which is one deflate block.
func oneBlock(t testing.TB) []byte {
	t.Helper()
	const matches = 40_000
	x := bytes.Repeat([]byte("x"), 1+258*matches)
	plain := archive(t, regular("a", x, []byte("y"), x))
	header, trailer := plain[:512], plain[512+2*len(x)+1:]
	stored := func(b []byte, final byte) []byte {
		n := len(b)
		return append([]byte{final, byte(n), byte(n >> 8), ^byte(n), ^byte(n >> 8)}, b...)
	}
	b := append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}, stored(header, 0)...)
	bits, n := uint(0), uint(0)
	put := func(v, width uint) { // the lowest bit first
		bits |= v << n
		for n += width; n >= 8; n -= 8 {
			b = append(b, byte(bits))
			bits >>= 8
		}
	}
	put(0b010, 3) // a block with fixed codes
	for _, literal := range []byte("xy") {
		put(uint(mathbits.Reverse8(0x30+literal)), 8)
		if literal == 'y' {
			put(uint(mathbits.Reverse8(0x30+'x')), 8)
		}
		for range matches {
			put(0b10100011, 8) // 258 bytes
			put(0, 5)          // from 1 byte before
		}
	}
	put(0, 7) // the end of the block
	put(0, 3) // a stored block
	put(0, (8-n)%8)
	b = append(b, stored(trailer, 0)[1:]...)
	b = append(b, stored(nil, 1)...)
	b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(plain))
	return binary.LittleEndian.AppendUint32(b, uint32(len(plain)))
}
