package chunk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"lighter/test/testkit/golden"
)

// noise returns n random bytes, the same for the same seed.
func noise(seed uint64, n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return b
}

type piece struct {
	id     ID
	length int64
	zeros  bool
}

func split(t testing.TB, r io.Reader, size int64) []piece {
	t.Helper()
	var got []piece
	var s Splitter
	err := s.Split(r, size, func(data []byte, zeros int64) error {
		if data == nil {
			got = append(got, piece{length: zeros, zeros: true})
			return nil
		}
		got = append(got, piece{id: Sum(data), length: int64(len(data))})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestPiecesAreTheFile(t *testing.T) {
	hole := make([]byte, 5*zeroRun+123)
	files := map[string][]byte{
		"empty":              nil,
		"one byte":           {1},
		"small":              noise(1, smallFile),
		"medium":             noise(2, 3<<20),
		"large":              noise(3, largeFile+1),
		"text":               []byte(strings.Repeat("all work and no play\n", 40000)),
		"only zeros":         hole,
		"short zeros":        make([]byte, zeroRun-1),
		"hole in the middle": bytes.Join([][]byte{noise(4, 100_000), hole, noise(5, 100_000)}, nil),
		"hole at the end":    append(noise(6, 70_001), hole...),
		"hole at the start":  append(bytes.Clone(hole), noise(7, 70_001)...),
	}
	for name, file := range files {
		t.Run(name, func(t *testing.T) {
			var back []byte
			var s Splitter
			r := iotest.HalfReader(bytes.NewReader(file)) // short reads
			err := s.Split(r, int64(len(file)), func(data []byte, zeros int64) error {
				if data == nil {
					data = make([]byte, zeros)
				} else if len(data) > MaxLength || len(data) == 0 {
					t.Errorf("got a chunk of %d bytes, want 1 to %d", len(data), MaxLength)
				}
				back = append(back, data...)
				return nil
			})
			if err != nil || !bytes.Equal(back, file) {
				t.Fatalf("the pieces of %d bytes have %d bytes (%v), want the same bytes", len(file), len(back), err)
			}
		})
	}
}

func TestSplitFindsHoles(t *testing.T) {
	file := bytes.Join([][]byte{noise(1, 5000), make([]byte, 20*zeroBlock), noise(2, 10)}, nil)
	got := split(t, bytes.NewReader(file), int64(len(file)))
	var zeros int64
	for _, p := range got {
		if p.zeros {
			zeros += p.length
		}
	}
	// The first 3192 zeros and the last 904 share blocks with data.
	if want := int64(19 * zeroBlock); zeros != want {
		t.Errorf("holes have %d bytes, want %d: %v", zeros, want, got)
	}
}

func TestSmallFilesAreOneChunk(t *testing.T) {
	for _, n := range []int{1, 4096, smallFile} {
		if got := split(t, bytes.NewReader(noise(9, n)), int64(n)); len(got) != 1 {
			t.Errorf("%d bytes were split into %d chunks, want 1", n, len(got))
		}
	}
}

// An insertion changes only the chunks around it: that is why files are split by content.
func TestSplitSurvivesInsertions(t *testing.T) {
	old := noise(11, 8<<20)
	edited := bytes.Join([][]byte{old[:1<<20], []byte("inserted"), old[1<<20:]}, nil)
	known := map[ID]bool{}
	for _, p := range split(t, bytes.NewReader(old), int64(len(old))) {
		known[p.id] = true
	}
	fresh := 0
	for _, p := range split(t, bytes.NewReader(edited), int64(len(edited))) {
		if !known[p.id] {
			fresh++
		}
	}
	if fresh == 0 || fresh > 3 {
		t.Errorf("an insertion of 8 bytes changed %d chunks, want 1 to 3", fresh)
	}
}

func TestSplitReturnsErrors(t *testing.T) {
	var s Splitter
	keep := func([]byte, int64) error { return nil }
	if err := s.Split(strings.NewReader("short"), 10, keep); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("split a truncated file: %v, want ErrUnexpectedEOF", err)
	}
	if err := s.Split(strings.NewReader(""), 10, keep); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("split an empty reader: %v, want ErrUnexpectedEOF", err)
	}
	if err := s.Split(strings.NewReader(""), -1, keep); err == nil {
		t.Error("split a file of negative size: got no error")
	}
	stop := errors.New("stop")
	if err := s.Split(strings.NewReader("abc"), 3, func([]byte, int64) error { return stop }); err != stop {
		t.Errorf("Split returned %v, want emit's error", err)
	}
}

// The golden file pins the rule: other cuts need another format number.
func TestSplitGolden(t *testing.T) {
	var out strings.Builder
	for _, size := range []int{smallFile, smallFile + 1, 2 << 20, largeFile + 1} {
		fmt.Fprintf(&out, "noise %d\n", size)
		for _, p := range split(t, bytes.NewReader(noise(42, size)), int64(size)) {
			fmt.Fprintf(&out, "%d %s\n", p.length, p.id)
		}
	}
	golden.Compare(t, "split.golden", out.String())
}

// The golden file pins the holes: runs of about the minimum length, in all parts of a file. They do
// not depend on the sizes of reads.
func TestHolesGolden(t *testing.T) {
	var out strings.Builder
	data := func(n int) []byte { return noise(42, n) }
	for _, c := range []struct {
		name  string
		parts [][]byte
	}{
		{"15 blocks", [][]byte{data(8192), make([]byte, 15*zeroBlock), data(5)}},
		{"16 blocks", [][]byte{data(8192), make([]byte, 16*zeroBlock), data(5)}},
		{"17 blocks", [][]byte{data(8192), make([]byte, 17*zeroBlock), data(5)}},
		{"16 blocks of zeros, 15 of them whole", [][]byte{data(8193), make([]byte, 16*zeroBlock), data(5)}},
		{"17 blocks of zeros, 16 of them whole", [][]byte{data(8193), make([]byte, 17*zeroBlock), data(5)}},
		{"at the start", [][]byte{make([]byte, 16*zeroBlock), data(70_000)}},
		{"at the start, and one byte", [][]byte{make([]byte, 16*zeroBlock), data(1)}},
		{"at the end", [][]byte{data(4096), make([]byte, 16*zeroBlock)}},
		{"at the end, with a short block", [][]byte{data(4096), make([]byte, 16*zeroBlock+77)}},
		{"at the end, one block too short", [][]byte{data(4096), make([]byte, 15*zeroBlock+4095)}},
		{"nothing else", [][]byte{make([]byte, 16*zeroBlock+1)}},
		{"nothing else, and too short", [][]byte{make([]byte, 16*zeroBlock-1)}},
		{"two, with a block between", [][]byte{data(1), make([]byte, 20*zeroBlock), data(4096),
			make([]byte, 20*zeroBlock), data(1)}},
		{"behind what is cut by content", [][]byte{data(300_000), make([]byte, 64*zeroBlock), data(300_000)}},
		{"behind a longest chunk", [][]byte{bytes.Repeat([]byte{1}, 256<<10), make([]byte, 16*zeroBlock), {1}}},
		{"longer than the buffer", [][]byte{data(100), make([]byte, 5*MaxLength), data(100)}},
	} {
		file := bytes.Join(c.parts, nil)
		pieces := split(t, bytes.NewReader(file), int64(len(file)))
		fmt.Fprintf(&out, "%s\n", c.name)
		for _, p := range pieces {
			fmt.Fprintf(&out, "%d %s\n", p.length, map[bool]string{true: "zeros", false: p.id.String()}[p.zeros])
		}
		for name, r := range map[string]io.Reader{"halves": iotest.HalfReader(bytes.NewReader(file)),
			"data with its error": iotest.DataErrReader(bytes.NewReader(file))} {
			if got := split(t, r, int64(len(file))); !slices.Equal(got, pieces) {
				t.Errorf("%s, read as %s: got %v, want %v", c.name, name, got, pieces)
			}
		}
	}
	golden.Compare(t, "holes.golden", out.String())
}

func FuzzSplit(f *testing.F) {
	f.Add([]byte("hello"), uint16(0), uint8(1))
	f.Add([]byte{0}, uint16(40), uint8(200))
	f.Fuzz(func(t *testing.T, seed []byte, zeroBlocks uint16, repeat uint8) {
		file := bytes.Repeat(seed, int(repeat)+1)
		file = append(file, make([]byte, int(zeroBlocks%100)*zeroBlock)...)
		file = append(file, seed...)
		var back []byte
		var s Splitter
		if err := s.Split(bytes.NewReader(file), int64(len(file)), func(data []byte, zeros int64) error {
			back = append(append(back, data...), make([]byte, zeros)...)
			return nil
		}); err != nil || !bytes.Equal(back, file) {
			t.Fatalf("the pieces of %d bytes have %d bytes (%v), want the same bytes", len(file), len(back), err)
		}
	})
}

func TestParseID(t *testing.T) {
	id := Sum([]byte("x"))
	if got, err := ParseID(id.String()); err != nil || got != id {
		t.Errorf("ParseID(%s): got %v, %v; want the same ID", id, got, err)
	}
	for _, bad := range []string{"", "ab", strings.ToUpper(id.String()), id.String() + "0", strings.Repeat("g", 64)} {
		if _, err := ParseID(bad); err == nil {
			t.Errorf("ParseID(%q): got no error, want one", bad)
		}
	}
}

func FuzzParseID(f *testing.F) {
	f.Add(Sum(nil).String())
	f.Add(strings.ToUpper(Sum(nil).String()))
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := ParseID(s); err == nil && id.String() != s {
			t.Fatalf("ParseID(%q) = %s", s, id)
		}
	})
}

func TestRefCheck(t *testing.T) {
	ref := Ref{ID: Sum([]byte("x")), Length: 1}
	if err := ref.Check([]byte("x")); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "y", "xx"} {
		var invalid *InvalidError
		if err := ref.Check([]byte(bad)); !errors.As(err, &invalid) {
			t.Errorf("Check(%q) = %v, want an InvalidError", bad, err)
		}
	}
}

func BenchmarkSplit(b *testing.B) {
	for _, size := range []int{1 << 20, largeFile + 1} {
		file := noise(1, size)
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.SetBytes(int64(size))
			var s Splitter
			for b.Loop() {
				_ = s.Split(bytes.NewReader(file), int64(size), func([]byte, int64) error { return nil })
			}
		})
	}
}
