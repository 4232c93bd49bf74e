package erofs

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"lighter/format/tree"
	"lighter/test/testkit/golden"
)

func compacted(t testing.TB, image []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := WriteCompact(&out, bytes.NewReader(image), int64(len(image))); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func expanded(compact []byte, size int) ([]byte, error) {
	return io.ReadAll(Expand(bufio.NewReader(bytes.NewReader(compact)), int64(size)))
}

// The compact form leads to the same bytes, whatever they are, and what follows it is left.
func TestCompact(t *testing.T) {
	images := map[string][]byte{
		"nothing": nil,
		"text":    []byte(strings.Repeat("no image ", 5000)),
		"zeros":   make([]byte, 100_000),
		"odd":     append(make([]byte, 5000), 1),
	}
	for name, root := range map[string]*tree.Node{"sample": sample(), "larger": larger(), "deep": deep(2000),
		"benchmark": benchTree(3000).Root} {
		_, images[name], _ = image(t, root)
	}
	for end := BlockSize; end < len(images["sample"]); end += 100 { // in the middle of anything
		images[strconv.Itoa(end)] = images["sample"][:end]
	}
	for name, b := range images {
		compact := compacted(t, b)
		got, err := expanded(append(compact, "the rest"...), len(b))
		if err != nil || !bytes.Equal(got, append(bytes.Clone(b), "the rest"...)) {
			t.Errorf("%s: the image is not the same, %v", name, err)
		}
	}
	// Of an inode and its name, the sizes, kind and name are left: not their numbers and places.
	if b := images["benchmark"]; len(compacted(t, b)) > len(b)/3 {
		t.Errorf("an image of %d bytes has a compact form of %d", len(b), len(compacted(t, b)))
	}
}

// A compact form that was cut gives an error, and so does one with pieces that no image has.
func TestExpandRefuses(t *testing.T) {
	_, b, _ := image(t, sample())
	compact := compacted(t, b)
	for n := range compact {
		if _, err := expanded(compact[:n], len(b)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("a form of %d bytes of %d: %v, want that it ends too early", n, len(compact), err)
		}
	}
	numbers := func(first byte, numbers ...uint64) []byte {
		b := []byte{first}
		for _, n := range numbers {
			b = binary.AppendUvarint(b, n)
		}
		return b
	}
	for want, compact := range map[string][]byte{
		"kind 4":                    {4},
		"at most 4096":              numbers(pieceZeros, 4097),
		"at most 341":               numbers(pieceEntries, 342),
		"at most 255":               append([]byte{pieceEntries, 1, 0, 1}, numbers(0, 256)[1:]...),
		"at most 65535":             numbers(pieceInode, newMode, 65536),
		"at most 4294967295":        numbers(pieceInode, newLinks, 1<<32),
		"overflows":                 append([]byte{pieceBytes}, bytes.Repeat([]byte{0xff}, 11)...),
		"longer than the image":     append(numbers(pieceZeros, 4033), numbers(pieceInode, 0, 1)...),
		"is 4294967296: want at mo": numbers(pieceInode, newOwner, 0, 1<<32),
	} {
		if _, err := expanded(compact, BlockSize); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// The error of the reader of an image is returned.
func TestWriteCompactReturnsTheReadersError(t *testing.T) {
	failed := errors.New("failed")
	r := io.MultiReader(bytes.NewReader(make([]byte, 5000)), iotest.ErrReader(failed))
	if err := WriteCompact(io.Discard, r, 8192); !errors.Is(err, failed) {
		t.Errorf("got %v, want the reader's error", err)
	}
	if err := WriteCompact(io.Discard, bytes.NewReader(nil), 8192); !errors.Is(err, io.EOF) {
		t.Errorf("an image that is too short: %v", err)
	}
}

// Every later version must read the golden file.
func TestCompactIsGolden(t *testing.T) {
	_, b, _ := image(t, sample())
	golden.Compare(t, "compact.golden", hexdump(compacted(t, b)))
}

// Any bytes have a compact form that leads to them, and no form leads to more bytes than it should,
// and to what follows.
func FuzzCompact(f *testing.F) {
	_, b, _ := image(f, sample())
	f.Add(b, compacted(f, b))
	f.Fuzz(func(t *testing.T, b, compact []byte) {
		if got, err := expanded(compacted(t, b), len(b)); err != nil || !bytes.Equal(got, b) {
			t.Fatalf("the bytes are not the same, %v", err)
		}
		const size = 64 << 10
		if got, err := expanded(compact, size); err == nil && len(got) > size+len(compact) {
			t.Fatalf("a form of %d bytes led to %d", len(compact), len(got))
		}
	})
}

// A form of empty pieces is refused at once, however long it is.
func TestExpandRefusesEmptyPieces(t *testing.T) {
	for _, kind := range []byte{pieceBytes, pieceZeros, pieceEntries} {
		const n = 8 << 20
		all := bytes.NewReader(bytes.Repeat([]byte{kind, 0}, n/2))
		_, err := io.ReadFull(Expand(bufio.NewReaderSize(all, 4096), 1<<20), make([]byte, 1<<20))
		if all.Len() < n-8192 {
			t.Errorf("kind %d: %d bytes of %d were read, error %v", kind, n-all.Len(), n, err)
		}
	}
}
