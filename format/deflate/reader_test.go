package deflate

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// sample returns n bytes that compress about as well as a layer: words, numbers and noise.
func sample(n int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	for b.Len() < n {
		switch random.IntN(12) {
		case 0:
			for range 300 {
				b.WriteByte(byte(random.Uint32()))
			}
		case 1:
			b.Write(make([]byte, random.IntN(2000)))
		case 2:
			b.WriteString(strings.Repeat("abc", random.IntN(400)))
		default:
			fmt.Fprintf(&b, "func word%d(x int) { return %d }\n", random.IntN(300), random.IntN(1e6))
		}
	}
	return b.Bytes()[:n]
}

// compress returns a member with these plain bytes.
func compress(t testing.TB, plain []byte, level int) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, level)
	if err != nil {
		t.Fatal(err)
	}
	z.Name, z.Comment, z.Extra = "a name", "a comment", []byte("extra")
	if _, err := z.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// raw returns a member whose blocks are these bits of a deflate stream.
func raw(t testing.TB, plain string, deflated []byte) []byte {
	t.Helper()
	empty := compress(t, []byte(plain), gzip.HuffmanOnly)
	b := append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}, deflated...)
	return append(b, empty[len(empty)-8:]...)
}

// streams returns gzip streams with their plain bytes, by name.
func streams(t testing.TB) map[string]struct{ plain, stream []byte } {
	t.Helper()
	type pair = struct{ plain, stream []byte }
	plain := sample(600_000)
	all := map[string]pair{
		"empty":  {nil, compress(t, nil, 6)},
		"byte":   {[]byte("x"), compress(t, []byte("x"), 6)},
		"zeros":  {make([]byte, 1e6), compress(t, make([]byte, 1e6), 6)},
		"stored": {plain, compress(t, plain, gzip.NoCompression)},
		"codes":  {plain, compress(t, plain, gzip.HuffmanOnly)},
	}
	for _, level := range []int{1, 6, 9} {
		all[fmt.Sprint("level ", level)] = pair{plain, compress(t, plain, level)}
	}
	var members pair
	for i := range 40 {
		part := plain[i*i*100 : i*i*100+i*700]
		members.plain = append(members.plain, part...)
		members.stream = append(members.stream, compress(t, part, i%10)...)
	}
	all["members"] = members
	var flushed bytes.Buffer
	z := gzip.NewWriter(&flushed)
	for i := range 300 {
		if _, err := z.Write(plain[i*300 : i*300+300]); err != nil {
			t.Fatal(err)
		}
		if err := z.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	all["flushed"] = pair{plain[:300*300], flushed.Bytes()}
	return all
}

func TestReaderReturnsThePlainBytes(t *testing.T) {
	for name, s := range streams(t) {
		for how, src := range map[string]io.Reader{
			"at once":      bytes.NewReader(s.stream),
			"byte by byte": iotest.OneByteReader(bytes.NewReader(s.stream)),
			"with EOF":     iotest.DataErrReader(bytes.NewReader(s.stream)),
		} {
			got, err := io.ReadAll(NewReader(src))
			if err != nil || !bytes.Equal(got, s.plain) {
				t.Errorf("%s, %s: got %d bytes (%v), want %d", name, how, len(got), err, len(s.plain))
			}
		}
	}
}

func TestTruncatedStreams(t *testing.T) {
	for name, s := range streams(t) {
		size := len(s.stream)
		for _, n := range []int{0, 1, 9, 10, 11, 20, size / 3, size - 9, size - 8, size - 1} {
			if n < 0 || n >= size {
				continue
			}
			got, err := io.ReadAll(NewReader(bytes.NewReader(s.stream[:n])))
			if !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.HasPrefix(s.plain, got) {
				t.Errorf("%s, %d of %d bytes: got %d bytes (%v), want a part and ErrUnexpectedEOF", name, n,
					size, len(got), err)
			}
		}
	}
}

func TestCorruptStreams(t *testing.T) {
	text := compress(t, sample(5000), 6)
	change := func(at int, to byte) []byte {
		b := bytes.Clone(text)
		b[(at+len(b))%len(b)] ^= to
		return b
	}
	for name, c := range map[string]struct {
		stream []byte
		what   string
	}{
		"magic":           {change(0, 1), "no gzip header"},
		"method":          {change(2, 1), "unknown compression method"},
		"reserved flags":  {change(3, 0x40), "reserved flags"},
		"checksum":        {change(-8, 1), "wrong checksum"},
		"length":          {change(-1, 1), "wrong length"},
		"a second member": {append(bytes.Clone(text), "something else"...), "no gzip header"},
		"a long name": {append([]byte{0x1f, 0x8b, 8, flagName, 0, 0, 0, 0, 0, 0}, strings.Repeat("n", 600)...),
			"too long"},
		"kind 3":         {raw(t, "", []byte{0x07}), "unknown kind"},
		"stored length":  {raw(t, "", []byte{0x01, 1, 0, 1, 0}), "complement"},
		"fixed distance": {raw(t, "", []byte{0x03, 0x02, 0, 0, 0, 0}), "before the beginning"},
		"fixed length":   {raw(t, "", []byte{0x1b, 0x03, 0, 0, 0, 0}), "literal or a length"},
		"too many codes": {raw(t, "", []byte{0xfd, 0xff, 0xff}), "too many codes"},
		"another member": {slices.Concat(compress(t, []byte("x"), 6), raw(t, "", []byte{0x03, 0x02, 0, 0})),
			"before the beginning"},
		"codes of codes": {raw(t, "", append([]byte{0x05, 0xe0}, bytes.Repeat([]byte{0xff}, 7)...)),
			"lengths of codes"},
	} {
		_, err := io.ReadAll(NewReader(bytes.NewReader(c.stream)))
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) || !strings.Contains(corrupt.What, c.what) {
			t.Errorf("%s: got %v, want a CorruptError with %q", name, err, c.what)
		}
	}
}

// packed returns the bits of numbers, each given with its number of bits.
func packed(numbers ...[2]uint32) []byte {
	var b []byte
	at := 0
	for _, number := range numbers {
		for i := range number[1] {
			if at%8 == 0 {
				b = append(b, 0)
			}
			b[at/8] |= byte(number[0]>>i&1) << (at % 8)
			at++
		}
	}
	return append(b, make([]byte, 32)...)
}

// dynamic returns the header of a dynamic block with 257 codes for literals and lengths and one for
// distances. The codes for lengths are of one bit each: 0 for the lower symbol, 1 for the higher.
func dynamic(low, high uint8, lengths ...[2]uint32) []byte {
	numbers := [][2]uint32{{1, 1}, {kindDynamic, 2}, {0, 5}, {0, 5}, {uint32(len(codeOrder) - 4), 4}}
	for _, symbol := range codeOrder {
		length := uint32(0)
		if symbol == low || symbol == high {
			length = 1
		}
		numbers = append(numbers, [2]uint32{length, 3})
	}
	return packed(append(numbers, lengths...)...)
}

func TestInvalidCodes(t *testing.T) {
	zeros := func(n uint32) [2]uint32 { return [2]uint32{1 | (n-11)<<1, 8} } // by symbol 18, as the higher one
	one := [2]uint32{0, 1}                                                   // the lower symbol
	for name, c := range map[string]struct {
		block []byte
		what  string
	}{
		"repeats nothing":  {dynamic(16, 17, one), "repeats the previous"},
		"too many lengths": {dynamic(17, 18, zeros(138), zeros(138)), "too many lengths"},
		"no end":           {dynamic(17, 18, zeros(138), zeros(120)), "end of the block"},
		"too many codes": {dynamic(1, 18, one, one, zeros(138), zeros(116), one, one),
			"code for literals"},
		"too few codes": {dynamic(2, 18, one, zeros(138), zeros(117), one, one), "code for literals"},
	} {
		_, err := io.ReadAll(NewReader(bytes.NewReader(raw(t, "", c.block))))
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) || !strings.Contains(corrupt.What, c.what) {
			t.Errorf("%s: got %v, want a CorruptError with %q", name, err, c.what)
		}
	}
}

func TestHeaderChecksum(t *testing.T) {
	header := []byte{0x1f, 0x8b, 8, flagHeaderCRC | flagName, 0, 0, 0, 0, 0, 0, 'n', 0}
	sum := crc32.ChecksumIEEE(header)
	stream := append(header, byte(sum), byte(sum>>8))
	stream = append(stream, raw(t, "", []byte{3, 0})[10:]...)
	if got, err := io.ReadAll(NewReader(bytes.NewReader(stream))); err != nil || len(got) > 0 {
		t.Errorf("a right checksum: got %d bytes (%v), want none", len(got), err)
	}
	stream[12] ^= 1
	var corrupt *CorruptError
	if _, err := io.ReadAll(NewReader(bytes.NewReader(stream))); !errors.As(err, &corrupt) {
		t.Errorf("a wrong checksum: got %v, want a CorruptError", err)
	}
}

func TestSourceErrors(t *testing.T) {
	failure := errors.New("failure")
	text := compress(t, sample(100_000), 6)
	src := io.MultiReader(bytes.NewReader(text[:5000]), iotest.ErrReader(failure))
	if got, err := io.ReadAll(NewReader(src)); !errors.Is(err, failure) || len(got) == 0 {
		t.Errorf("got %d bytes (%v), want some and the source's error", len(got), err)
	}
	if _, err := io.ReadAll(NewReader(stuck{})); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a source without bytes and without an error: got %v, want ErrNoProgress", err)
	}
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

// reference reads a stream as compress/gzip does.
func reference(stream []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(stream))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(z, fuzzLimit))
}

// fuzzLimit bounds the plain bytes that a fuzz test reads.
const fuzzLimit = 1 << 20

// seeds returns short streams: a fuzzer spends most of its time on long ones.
func seeds(t testing.TB) [][]byte {
	t.Helper()
	var all [][]byte
	for level := gzip.HuffmanOnly; level <= gzip.BestCompression; level++ {
		all = append(all, compress(t, sample(900), level))
	}
	return append(all, append(compress(t, []byte("first"), 6), compress(t, make([]byte, 2000), 6)...))
}

// FuzzReader compares with compress/gzip, and each checkpoint's bytes with those of the stream.
func FuzzReader(f *testing.F) {
	for _, stream := range seeds(f) {
		f.Add(stream)
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		var points []Checkpoint
		r := NewIndexer(bytes.NewReader(stream), 200, func(c Checkpoint) error {
			if len(points) < 5 {
				c.Window = bytes.Clone(c.Window)
				points = append(points, c)
			}
			return nil
		})
		got, err := io.ReadAll(io.LimitReader(r, fuzzLimit))
		want, wantErr := reference(stream)
		var corrupt *CorruptError
		if errors.As(err, &corrupt) && strings.HasPrefix(corrupt.What, "reserved") {
			return
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("got error %v, want %v", err, wantErr)
		}
		if err == nil && !bytes.Equal(got, want) {
			t.Fatalf("got %d bytes, want %d, or they differ", len(got), len(want))
		}
		if len(got) == fuzzLimit {
			return
		}
		for _, c := range points {
			checkResume(t, stream, got, c, err == nil)
		}
	})
}

// FuzzBlocks is FuzzReader for deflate streams in a valid member: a fuzzer hardly finds checksums.
func FuzzBlocks(f *testing.F) {
	for _, stream := range seeds(f) {
		f.Add(stream[34:]) // after the header
	}
	f.Fuzz(func(t *testing.T, deflated []byte) {
		stream := append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}, deflated...)
		got, err := io.ReadAll(io.LimitReader(NewReader(bytes.NewReader(stream)), fuzzLimit))
		want, wantErr := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(deflated)), fuzzLimit))
		// Only these blocks are compared, not what follows them: a trailer, and further members.
		if wantErr == nil && !bytes.HasPrefix(got, want) {
			t.Fatalf("got %d bytes (%v), want %d", len(got), err, len(want))
		}
		// At the end of a truncated stream, compress/flate wants more bits than a symbol has.
		if wantErr != nil && (err == nil || !bytes.HasPrefix(got, want) && !bytes.HasPrefix(want, got)) {
			t.Fatalf("got %d bytes (%v), want about %d (%v)", len(got), err, len(want), wantErr)
		}
	})
}
