package layer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/deflate"
	"lighter/test/testkit/golden"
)

// gzipped returns one gzip member for each text.
func gzipped(t testing.TB, texts ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	for _, text := range texts {
		w.Reset(&b)
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// zstded returns one zstd frame for each text.
func zstded(t testing.TB, texts ...string) (b []byte) {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		b = w.EncodeAll([]byte(text), b)
	}
	return b
}

// sample is a layer with units of each codec.
type sample struct {
	blob  []byte
	units []Unit
}

func (s *sample) add(stored []byte, u Unit) {
	u.Offset, u.Stored = int64(len(s.blob)), int64(len(stored))
	s.blob = append(s.blob, stored...)
	s.units = append(s.units, u)
}

// chunkAt is the chunk text at an offset of the plain bytes of the part at begin.
func chunkAt(text string, begin int, offset uint32) Chunk {
	return Chunk{chunk.Sum([]byte(text)), uint32(begin), offset, uint32(len(text))}
}

// newSample returns the same layer each time.
func newSample(t testing.TB) *sample {
	t.Helper()
	s := &sample{}
	s.add([]byte("plain text"), Unit{Codec: Stored, Chunks: []Chunk{chunkAt("plain", 0, 0), chunkAt("text", 0, 6)}})
	one := gzipped(t, "header", "one")
	s.add(append(one, gzipped(t, "two three")...), Unit{Codec: Gzip, Chunks: []Chunk{chunkAt("one", 0, 6),
		chunkAt("two", len(one), 0), chunkAt("three", len(one), 4)}})
	one = zstded(t, "one")
	s.add(append(one, zstded(t, "two")...), Unit{Codec: Zstd,
		Chunks: []Chunk{chunkAt("one", 0, 0), chunkAt("two", len(one), 0)}})
	long := strings.Repeat("a long chunk ", 200_000) // longer than chunk.MaxLength
	u := Unit{Codec: Gzip, Seal: SealedPlain, Digest: chunk.Sum([]byte(long))}
	for at := 0; at < len(long); at += chunk.MaxLength {
		n := uint32(min(chunk.MaxLength, len(long)-at))
		u.Chunks = append(u.Chunks, Chunk{u.Key().Derive(uint32(at), n), 0, uint32(at), n})
	}
	s.add(gzipped(t, long+"the next header"), u)
	s.addSpans(t)
	return s
}

// addSpans adds a gzip member that is entered at a block, as SOCI does.
func (s *sample) addSpans(t testing.TB) {
	t.Helper()
	var text strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&text, "line %d\n", i*i)
	}
	member := gzipped(t, text.String())
	var at []deflate.Checkpoint
	r := deflate.NewIndexer(bytes.NewReader(member), 100_000, func(c deflate.Checkpoint) error {
		c.Window = bytes.Clone(c.Window)
		at = append(at, c)
		return nil
	})
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
	if len(at) < 3 || at[1].Bits == 0 {
		t.Fatalf("the member has the checkpoints %+v", at)
	}
	span := member[at[1].Start():at[2].In]
	u := Unit{Codec: Deflate, Seal: SealedStored, Digest: chunk.Sum(span), Bits: at[1].Bits, Window: at[1].Window}
	plain := text.String()[at[1].Out:at[2].Out]
	u.Chunks = []Chunk{{u.Key().Derive(7, 1000), 0, 7, 1000}, chunkAt(plain[2000:], 0, 2000)}
	s.add(span, u)
}

// table returns the sample's table.
func (s *sample) table(t testing.TB) []byte {
	t.Helper()
	b := NewBuilder(chunk.Sum(s.blob), int64(len(s.blob)))
	for i, u := range s.units {
		if n, err := b.Add(u); err != nil || int(n) != i {
			t.Fatalf("unit %d: got number %d, %v", i, n, err)
		}
	}
	var out bytes.Buffer
	if n, err := b.WriteTo(&out); err != nil || n != int64(out.Len()) {
		t.Fatalf("wrote %d bytes of %d: %v", n, out.Len(), err)
	}
	return out.Bytes()
}

func open(t testing.TB, table []byte) *Table {
	t.Helper()
	opened, err := OpenTable(bytes.NewReader(table), int64(len(table)))
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// What was added to a table is read from it. Each unit decodes to its chunks.
func TestTable(t *testing.T) {
	s := newSample(t)
	table := open(t, s.table(t))
	if id, size := table.Blob(); id != chunk.Sum(s.blob) || size != int64(len(s.blob)) ||
		table.Units() != len(s.units) {
		t.Errorf("the table is of %d units of blob %s with %d bytes", table.Units(), id, size)
	}
	for i, want := range s.units {
		u, err := table.Unit(uint32(i))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(*u, want) {
			t.Errorf("unit %d is %+v, want %+v", i, *u, want)
		}
		batch, err := u.Decode(s.blob[u.Offset:][:u.Stored])
		if err != nil {
			t.Fatalf("unit %d: %v", i, err)
		}
		if batch.Len() != len(u.Chunks) || batch.Memory() == 0 {
			t.Errorf("unit %d has %d chunks and takes %d bytes", i, batch.Len(), batch.Memory())
		}
		for j, c := range u.Chunks {
			plain, err := batch.Chunk(j)
			found, lookup := batch.Lookup(c.ID)
			if err != nil || lookup != nil || len(plain) != int(c.Length) || !bytes.Equal(plain, found) {
				t.Errorf("chunk %d of unit %d: %d bytes, %v, %v", j, i, len(plain), err, lookup)
			}
			if !IsDerived(c.ID) && chunk.Sum(plain) != c.ID {
				t.Errorf("chunk %d of unit %d has other bytes", j, i)
			}
		}
		if _, err := batch.Lookup(chunk.Sum([]byte("another"))); !errors.Is(err, chunk.ErrNotFound) {
			t.Errorf("Lookup of another chunk: %v", err)
		}
	}
	if _, err := table.Unit(uint32(len(s.units))); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("a unit that the table does not have: %v", err)
	}
}

func TestTableIsGolden(t *testing.T) {
	s := newSample(t)
	s.units = s.units[:1] // compressed bytes depend on the version of the library
	s.blob = s.blob[:s.units[0].Stored]
	u := Unit{Offset: 4, Stored: 6, Codec: Deflate, Seal: SealedStored, Digest: chunk.Sum([]byte("span")), Bits: 3}
	u.Chunks = []Chunk{{u.Key().Derive(1, 9), 0, 1, 9}}
	s.units = append(s.units, u)
	golden.Compare(t, "table.golden", string(s.table(t)))
}

// A derived ID covers all that the bytes depend on.
func TestDerive(t *testing.T) {
	u := Unit{Codec: Deflate, Seal: SealedStored, Digest: chunk.Sum([]byte("span")), Bits: 3, Window: []byte("before")}
	ids := map[chunk.ID]string{u.Key().Derive(1, 2): "the unit"}
	for what, change := range map[string]func(u *Unit){
		"digest": func(u *Unit) { u.Digest[5]++ },
		"codec":  func(u *Unit) { u.Codec = Gzip },
		"bits":   func(u *Unit) { u.Bits = 4 },
		"window": func(u *Unit) { u.Window = []byte("Before") },
		"seal":   func(u *Unit) { u.Seal = SealedPlain },
	} {
		other := u
		change(&other)
		ids[other.Key().Derive(1, 2)] = what
	}
	ids[u.Key().Derive(2, 2)], ids[u.Key().Derive(1, 3)] = "offset", "length"
	if len(ids) != 8 {
		t.Errorf("%d different IDs of %v, want 8", len(ids), ids)
	}
	for id := range ids {
		if !IsDerived(id) {
			t.Errorf("%s does not look derived", id)
		}
	}
	if IsDerived(chunk.Sum(nil)) {
		t.Error("a digest looks derived")
	}
}

// Wrong bytes, and a table that says wrong what they are, never become a chunk.
func TestWrongBytes(t *testing.T) {
	s := newSample(t)
	for i, u := range s.units {
		for name, spoil := range map[string]func(u *Unit, stored []byte) []byte{
			"a flipped bit":   func(_ *Unit, stored []byte) []byte { stored[len(stored)/2] ^= 1; return stored },
			"a missing byte":  func(_ *Unit, stored []byte) []byte { return stored[1:] },
			"too long":        func(u *Unit, stored []byte) []byte { u.Chunks[0].Length += 1 << 20; return stored },
			"another chunk":   func(u *Unit, stored []byte) []byte { u.Chunks[0].Length--; return stored },
			"another offset":  func(u *Unit, stored []byte) []byte { u.Chunks[0].Offset++; return stored },
			"another window":  func(u *Unit, stored []byte) []byte { u.Window = u.Window[1:]; return stored },
			"another bit":     func(u *Unit, stored []byte) []byte { u.Bits ^= 1; return stored },
			"another decoder": func(u *Unit, stored []byte) []byte { u.Codec = u.Codec%Deflate + 1; return stored },
		} {
			if u.Codec != Deflate && (name == "another window" || name == "another bit") {
				continue
			}
			changed := u
			changed.Chunks = []Chunk{u.Chunks[0]}
			batch, err := changed.Decode(spoil(&changed, bytes.Clone(s.blob[u.Offset:][:u.Stored])))
			if err == nil {
				_, err = batch.Chunk(0)
			}
			if name == "a flipped bit" && u.Seal == Unsealed && err == nil {
				continue // it is in another chunk
			}
			if !errors.As(err, new(*chunk.InvalidError)) {
				t.Errorf("unit %d, %s: %v, want an InvalidError", i, name, err)
			}
		}
	}
}

// The parts of a unit are decoded once each, and only their plain bytes are kept.
func TestManyParts(t *testing.T) {
	u := Unit{Codec: Zstd}
	var stored []byte
	for i := range 1200 {
		text := strings.Repeat(fmt.Sprint(i), 200)
		u.Chunks = append(u.Chunks, chunkAt(text, len(stored), 0))
		stored = append(stored, zstded(t, text)...)
	}
	u.Stored = int64(len(stored))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	batch, err := u.Decode(stored)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for i := range u.Chunks {
			if _, err := batch.Chunk(i); err != nil {
				t.Fatal(err)
			}
		}
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 16<<20 {
		t.Errorf("decoding 1 MB of plain bytes allocates %d bytes", got)
	}
}

// A part with wrong bytes does not affect the chunks of other parts.
func TestDamagedPart(t *testing.T) {
	first, second := gzipped(t, "first"), gzipped(t, "second")
	damaged := bytes.Clone(second)
	damaged[12] ^= 1
	u := Unit{Stored: int64(len(first) + len(second)), Codec: Gzip,
		Chunks: []Chunk{chunkAt("first", 0, 0), chunkAt("second", len(first), 0)}}
	batch, err := u.Decode(append(first, damaged...))
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := batch.Lookup(u.Chunks[0].ID); err != nil || string(plain) != "first" {
		t.Errorf("the good part: %q, %v", plain, err)
	}
	for range 2 {
		if _, err := batch.Lookup(u.Chunks[1].ID); !errors.As(err, new(*chunk.InvalidError)) {
			t.Errorf("the damaged part: %v, want an InvalidError", err)
		}
	}
}

// Podman and Skopeo write frames that name a window of 32 MiB.
func TestLargeWindow(t *testing.T) {
	var stored bytes.Buffer
	w, err := zstd.NewWriter(&stored, zstd.WithWindowSize(32<<20))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("text")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Flush(), w.Close()); err != nil {
		t.Fatal(err)
	}
	u := Unit{Stored: int64(stored.Len()), Codec: Zstd, Chunks: []Chunk{chunkAt("text", 0, 0)}}
	b, err := u.Decode(stored.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := b.Chunk(0); string(got) != "text" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestBadUnits(t *testing.T) {
	good := Unit{Offset: 10, Stored: 5, Codec: Gzip, Chunks: []Chunk{chunkAt("12345", 0, 0)}}
	for want, change := range map[string]func(u *Unit){
		"5 bytes at 96":             func(u *Unit) { u.Offset = 96 },
		"5 bytes at -1":             func(u *Unit) { u.Offset = -1 },
		"0 bytes at 10":             func(u *Unit) { u.Stored = 0 },
		"4718593 bytes":             func(u *Unit) { u.Stored = MaxStored + 1 },
		"8388609 plain bytes":       func(u *Unit) { u.Chunks[0].Offset = MaxPlain - 4 },
		"8388614 plain bytes":       func(u *Unit) { u.Chunks = append(u.Chunks, chunkAt("5", 1, MaxPlain)) },
		"6 plain bytes in 5":        func(u *Unit) { u.Codec, u.Chunks[0].Offset = Stored, 1 },
		"unknown codec 0":           func(u *Unit) { u.Codec = 0 },
		"unknown codec 5":           func(u *Unit) { u.Codec = 5 },
		"seal 1":                    func(u *Unit) { u.Seal = SealedStored },
		"seal 3":                    func(u *Unit) { u.Seal, u.Digest = 3, chunk.Sum(nil) },
		"seal 0":                    func(u *Unit) { u.Digest = chunk.Sum(nil) },
		"a window of 1":             func(u *Unit) { u.Window = []byte{1} },
		"a window of 32769":         func(u *Unit) { u.Codec, u.Window = Deflate, make([]byte, WindowSize+1) },
		"and 8 bits":                func(u *Unit) { u.Codec, u.Bits = Deflate, 8 },
		"0 chunks":                  func(u *Unit) { u.Chunks = nil },
		"65537 chunks":              func(u *Unit) { u.Chunks = make([]Chunk, MaxChunks+1) },
		"chunk 0 has 0 bytes":       func(u *Unit) { u.Chunks = []Chunk{chunkAt("", 0, 1)} },
		"chunk 0 has 1048577 bytes": func(u *Unit) { u.Chunks[0].Length = chunk.MaxLength + 1 },
		"and the ID 000000000000":   func(u *Unit) { u.Chunks = []Chunk{{Length: 1}} },
		"chunk 0 begins at 5 of 5":  func(u *Unit) { u.Chunks[0].Begin = 5 },
		"chunk 0 begins at 2 of 5":  func(u *Unit) { u.Codec, u.Chunks[0].Begin = Deflate, 2 },
		"chunk 1 begins before":     func(u *Unit) { u.Chunks = []Chunk{chunkAt("1", 0, 1), chunkAt("2", 0, 0)} },
		"chunk 0 has a derived ID":  func(u *Unit) { u.Chunks[0].ID = u.Key().Derive(0, 5) },
		"it begins before the prev": func(u *Unit) { u.Offset = 3 },
	} {
		b := NewBuilder(chunk.Sum([]byte("blob")), 100)
		first := Unit{Offset: 4, Stored: 1, Codec: Stored, Chunks: []Chunk{chunkAt("1", 0, 0)}}
		if _, err := b.Add(first); err != nil {
			t.Fatal(err)
		}
		u := good
		u.Chunks = append([]Chunk(nil), good.Chunks...)
		change(&u)
		if _, err := b.Add(u); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// The blob of a table can be named after its units.
func TestSetBlob(t *testing.T) {
	s := newSample(t)
	b := NewReading()
	for _, u := range s.units {
		if _, err := b.Add(u); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.SetBlob(chunk.Sum(s.blob), int64(len(s.blob))-1); err == nil {
		t.Error("a unit ends outside of the blob, and SetBlob has no error")
	}
	if err := b.SetBlob(chunk.Sum(s.blob), int64(len(s.blob))); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if _, err := b.WriteTo(&got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), s.table(t)) || b.Size() != int64(got.Len()) {
		t.Errorf("the table has %d bytes, Size says %d, or it differs", got.Len(), b.Size())
	}
}

// A table that was cut, changed or made up gives errors, and no chunk with wrong bytes.
func FuzzTable(f *testing.F) {
	s := newSample(f)
	s.units = append(s.units[:3:3], s.units[4]) // the other one is long
	f.Add(s.table(f), s.blob)
	f.Fuzz(func(t *testing.T, b, blob []byte) {
		table, err := OpenTable(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		for n := range min(table.Units(), 20) {
			u, err := table.Unit(uint32(n))
			if err != nil || u.Offset+u.Stored > int64(len(blob)) {
				continue
			}
			batch, err := u.Decode(blob[u.Offset:][:u.Stored])
			if err != nil {
				continue
			}
			for i := range batch.Len() {
				if plain, err := batch.Chunk(i); err == nil && !IsDerived(batch.Ref(i).ID) &&
					chunk.Sum(plain) != batch.Ref(i).ID {
					t.Fatalf("chunk %d of unit %d has wrong bytes", i, n)
				}
			}
		}
	})
}
