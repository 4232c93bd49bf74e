package pack

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
)

func encoder(t testing.TB) *zstd.Encoder {
	t.Helper()
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	return enc
}

// encodeUnit returns a unit of these chunks.
func encodeUnit(t testing.TB, chunks ...string) []byte {
	t.Helper()
	var b UnitBuilder
	for i, c := range chunks {
		if got := b.Add(chunk.Sum([]byte(c)), []byte(c)); got != i {
			t.Fatalf("Add of chunk %d = %d, want %d", i, got, i)
		}
	}
	return b.Encode(nil, encoder(t))
}

func TestUnitReturnsItsChunks(t *testing.T) {
	chunks := []string{"hello", "", "world", string(make([]byte, chunk.MaxLength))}
	chunks[1] = "x"
	u, err := DecodeUnit(encodeUnit(t, chunks...))
	if err != nil {
		t.Fatal(err)
	}
	if u.Len() != len(chunks) {
		t.Fatalf("Len = %d, want %d", u.Len(), len(chunks))
	}
	for i, c := range chunks {
		if ref := u.Ref(i); ref.ID != chunk.Sum([]byte(c)) || int(ref.Length) != len(c) {
			t.Errorf("Ref(%d) = %v", i, ref)
		}
		for range 2 { // verified, and already verified
			if plain, err := u.Chunk(i); err != nil || string(plain) != c {
				t.Errorf("Chunk(%d): got %d bytes (%v), want %d", i, len(plain), err, len(c))
			}
		}
		if plain, err := u.Lookup(chunk.Sum([]byte(c))); err != nil || string(plain) != c {
			t.Errorf("Lookup of chunk %d: got %d bytes (%v), want %d", i, len(plain), err, len(c))
		}
	}
	if _, err := u.Lookup(chunk.Sum([]byte("another"))); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("Lookup of another chunk: %v, want ErrNotFound", err)
	}
}

func TestChunkIsVerified(t *testing.T) {
	var b UnitBuilder
	b.Add(chunk.Sum([]byte("honest")), []byte("forged"))
	u, err := DecodeUnit(b.Encode(nil, encoder(t)))
	if err != nil {
		t.Fatal(err)
	}
	var invalid *chunk.InvalidError
	if plain, err := u.Chunk(0); !errors.As(err, &invalid) || plain != nil {
		t.Errorf("read a forged chunk: got %q, %v, want an InvalidError", plain, err)
	}
}

func TestDecodeUnitFails(t *testing.T) {
	good := encodeUnit(t, "hello", "world")
	patch := func(at int, v uint32) []byte {
		b := bytes.Clone(good)
		binary.LittleEndian.PutUint32(b[at:], v)
		return b
	}
	bad := map[string][]byte{
		"empty":                nil,
		"half a header":        good[:10],
		"another magic":        patch(0, 1),
		"no chunks":            patch(4, 0),
		"too many chunks":      patch(4, maxChunks+1),
		"high byte of count":   patch(4, 2|2<<24),
		"too many bytes":       patch(8, MaxPlain+1),
		"a wrong plain length": patch(8, 11),
		"a wrong frame length": patch(12, 1),
		"a chunk of length 0":  patch(unitHeader+chunk.Size, 0),
		"a chunk too long":     patch(unitHeader+chunk.Size, chunk.MaxLength+1),
		"truncated":            good[:len(good)-1],
		"a byte too many":      append(bytes.Clone(good), 0),
		"too large":            manySmall(t),
		"a frame of noise":     append(bytes.Clone(good[:len(good)-8]), "notzstd!"...),
	}
	for name, b := range bad {
		if _, err := DecodeUnit(b); err == nil {
			t.Errorf("decode unit, %s: got no error", name)
		}
	}
	if _, err := DecodeUnit(good); err != nil {
		t.Fatal(err)
	}
}

// manySmall returns a unit that is larger than MaxStored because of its table.
func manySmall(t *testing.T) []byte {
	var b UnitBuilder
	plain := make([]byte, MaxPlain/maxChunks)
	r := rand.NewChaCha8([32]byte{})
	for range maxChunks {
		_, _ = r.Read(plain)
		b.Add(chunk.Sum(plain), plain)
	}
	unit := b.Encode(nil, encoder(t))
	if len(unit) <= MaxStored {
		t.Fatalf("the unit has %d bytes, want more than %d", len(unit), MaxStored)
	}
	return unit
}

func TestPack(t *testing.T) {
	var file bytes.Buffer
	w := NewWriter(&file)
	units := [][]byte{encodeUnit(t, "a"), encodeUnit(t, "b", "c"), encodeUnit(t, "d")}
	for i, u := range units {
		if n, err := w.Add(u); err != nil || int(n) != i {
			t.Fatalf("Add of unit %d: got number %d, %v; want the same number", i, n, err)
		}
	}
	id, size, err := w.Close()
	if err != nil || size != int64(file.Len()) || id != chunk.Sum(file.Bytes()) {
		t.Fatalf("Close = %s, %d, %v, want %s, %d", id, size, err, chunk.Sum(file.Bytes()), file.Len())
	}
	table, err := ReadTable(bytes.NewReader(file.Bytes()), size)
	if err != nil || table.Units() != len(units) {
		t.Fatalf("ReadTable = %v, %v, want %d units", table, err, len(units))
	}
	for i, u := range units {
		offset, length, err := table.Unit(uint32(i))
		if err != nil || !bytes.Equal(file.Bytes()[offset:offset+length], u) {
			t.Errorf("Unit(%d) = %d, %d, %v: other bytes than were added", i, offset, length, err)
		}
	}
	if _, _, err := table.Unit(3); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("Unit(3): %v, want ErrNotFound", err)
	}
	for i := range file.Len() {
		if i < int(table.offsets[3]) {
			continue // units have their own checks
		}
		b := bytes.Clone(file.Bytes())
		b[i] ^= 0x40
		if _, err := ReadTable(bytes.NewReader(b), size); err == nil {
			t.Errorf("read a table with byte %d flipped: got no error", i)
		}
	}
	for _, n := range []int64{0, packFooter - 1, size - 1} {
		if _, err := ReadTable(bytes.NewReader(file.Bytes()[:n]), n); err == nil {
			t.Errorf("read the table of a pack truncated to %d bytes: got no error", n)
		}
	}
}

// A table with a correct checksum can have lengths that are out of bounds.
func TestReadTableChecksLengths(t *testing.T) {
	for name, c := range map[string]struct {
		unit int
		ok   bool
	}{"0": {0, false}, "1": {1, true}, "MaxStored": {MaxStored, true}, "MaxStored+1": {MaxStored + 1, false}} {
		var file bytes.Buffer
		w := NewWriter(&file)
		if _, err := w.Add(make([]byte, c.unit)); err != nil {
			t.Fatal(err)
		}
		_, size, err := w.Close()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadTable(bytes.NewReader(file.Bytes()), size); (err == nil) != c.ok {
			t.Errorf("table with a unit of %s bytes: %v, want accepted: %t", name, err, c.ok)
		}
	}
}

func TestWriterIsFull(t *testing.T) {
	w := NewWriter(&bytes.Buffer{})
	unit := make([]byte, targetSize/2)
	for _, want := range []bool{false, true} {
		if _, err := w.Add(unit); err != nil || w.Full() != want {
			t.Fatalf("after %d bytes: Full = %t (%v), want %t", w.size, w.Full(), err, want)
		}
	}
	var b UnitBuilder
	b.Add(chunk.ID{1}, make([]byte, targetPlain-1))
	if b.Full() {
		t.Error("unit below the target: Full = true, want false")
	}
	b.Add(chunk.ID{2}, make([]byte, 1))
	if !b.Full() || b.Len() != 2 {
		t.Error("unit at the target: Full = false, want true")
	}
	if b.Reset(); b.Len() != 0 || b.Full() {
		t.Error("unit is not empty after Reset")
	}
}

// Every later version must read the golden files. They are not compared with new ones, as other
// versions of zstd write other bytes.
func TestGolden(t *testing.T) {
	unitFile, packFile := filepath.Join("testdata", "unit.golden"), filepath.Join("testdata", "pack.golden")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		unit := encodeUnit(t, "hello", "world", "hello, world")
		var file bytes.Buffer
		w := NewWriter(&file)
		_, _ = w.Add(unit)
		_, _ = w.Add(encodeUnit(t, "the second unit"))
		_, _, _ = w.Close()
		for path, b := range map[string][]byte{unitFile: unit, packFile: file.Bytes()} {
			if err := os.WriteFile(path, []byte(hex.Dump(b)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	u, err := DecodeUnit(readDump(t, unitFile))
	if err != nil || u.Len() != 3 {
		t.Fatalf("DecodeUnit = %v, %v, want 3 chunks", u, err)
	}
	if plain, err := u.Chunk(2); err != nil || string(plain) != "hello, world" {
		t.Errorf("Chunk(2): got %q, %v; want \"hello, world\"", plain, err)
	}
	file := readDump(t, packFile)
	table, err := ReadTable(bytes.NewReader(file), int64(len(file)))
	if err != nil || table.Units() != 2 {
		t.Fatalf("ReadTable = %v, %v, want 2 units", table, err)
	}
	offset, length, _ := table.Unit(1)
	u, err = DecodeUnit(file[offset : offset+length])
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := u.Chunk(0); err != nil || string(plain) != "the second unit" {
		t.Errorf("Chunk(0) of the second unit: got %q, %v; want \"the second unit\"", plain, err)
	}
}

// readDump parses the output of hex.Dump.
func readDump(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for _, line := range bytes.Split(text, []byte("\n")) {
		if len(line) < 60 {
			continue
		}
		b, err := hex.DecodeString(string(bytes.ReplaceAll(bytes.TrimSpace(line[9:59]), []byte(" "), nil)))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		out = append(out, b...)
	}
	return out
}

func FuzzDecodeUnit(f *testing.F) {
	f.Add(encodeUnit(f, "hello", "world"))
	f.Add([]byte(unitMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		u, err := DecodeUnit(b)
		if err != nil {
			return
		}
		for i := range u.Len() {
			if plain, err := u.Chunk(i); err == nil && chunk.Sum(plain) != u.Ref(i).ID {
				t.Fatalf("Chunk(%d) does not match its ID", i)
			}
		}
	})
}

func FuzzReadTable(f *testing.F) {
	var file bytes.Buffer
	w := NewWriter(&file)
	_, _ = w.Add([]byte("unit"))
	_, _, _ = w.Close()
	f.Add(file.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		table, err := ReadTable(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		for i := range table.Units() {
			if offset, length, err := table.Unit(uint32(i)); err != nil || offset < 0 || offset+length > int64(len(b)) {
				t.Fatalf("Unit(%d) = %d, %d, %v in a pack of %d bytes", i, offset, length, err, len(b))
			}
		}
	})
}

func BenchmarkDecodeUnit(b *testing.B) {
	// A quarter noise, the rest text: about as compressible as libraries.
	r := rand.New(rand.NewPCG(1, 2))
	plain := make([]byte, targetPlain)
	for i := range plain {
		plain[i] = "the quick brown fox"[i%19]
		if i%64 < 16 {
			plain[i] = byte(r.Uint32())
		}
	}
	var builder UnitBuilder
	for part := range slices.Chunk(plain, 64<<10) {
		builder.Add(sha256.Sum256(part), part)
	}
	unit := builder.Encode(nil, encoder(b))
	b.Run(fmt.Sprintf("decode-%d", len(unit)), func(b *testing.B) {
		b.SetBytes(targetPlain)
		for b.Loop() {
			if _, err := DecodeUnit(unit); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode+verify", func(b *testing.B) {
		b.SetBytes(targetPlain)
		for b.Loop() {
			u, _ := DecodeUnit(unit)
			for i := range u.Len() {
				if _, err := u.Chunk(i); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
