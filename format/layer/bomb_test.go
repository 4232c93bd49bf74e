package layer

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"

	"lighter/format/chunk"
	"lighter/format/deflate"
)

// bombSize is how many zeros a bomb inflates to.
const bombSize = 64 << 20

// bomb returns a unit of 64 MiB of zeros from a block inside a gzip member on, without its chunks.
func bomb(t *testing.T) (u Unit, stored []byte) {
	t.Helper()
	var member bytes.Buffer
	w := gzip.NewWriter(&member)
	zeros := make([]byte, bombSize)
	_, first := w.Write(zeros[:1<<20])
	flushed := w.Flush() // ends a block
	_, rest := w.Write(zeros)
	if err := errors.Join(first, flushed, rest, w.Close()); err != nil {
		t.Fatal(err)
	}
	found := errors.New("found")
	r := deflate.NewIndexer(bytes.NewReader(member.Bytes()), 1, func(c deflate.Checkpoint) error {
		if c.Out != 1<<20 {
			return nil
		}
		u.Bits, u.Window, stored = c.Bits, bytes.Clone(c.Window), member.Bytes()[c.Start():]
		return found
	})
	if _, err := io.Copy(io.Discard, r); !errors.Is(err, found) {
		t.Fatalf("no block begins where the first one was flushed: %v", err)
	}
	u.Codec, u.Stored = Deflate, int64(len(stored))
	return u, stored
}

// A unit that inflates to more than its chunks have is cut off, and takes no more memory.
func TestBomb(t *testing.T) {
	zeros := strings.Repeat("\x00", bombSize)
	inside, span := bomb(t)
	member := gzipped(t, zeros)
	sealed := func(u Unit, s Seal, of []byte) Unit { u.Seal, u.Digest = s, chunk.Sum(of); return u }
	for name, c := range map[string]struct {
		unit   Unit
		stored []byte
	}{
		"a gzip member":           {Unit{Codec: Gzip}, member},
		"a sealed gzip member":    {sealed(Unit{Codec: Gzip}, SealedStored, member), member},
		"a block":                 {inside, span},
		"a sealed block":          {sealed(inside, SealedStored, span), span},
		"a block, sealed plainly": {sealed(inside, SealedPlain, []byte(zeros[:1007])), span},
	} {
		u, isSealed := c.unit, c.unit.Seal != Unsealed
		u.Stored = int64(len(c.stored))
		u.Chunks = []Chunk{chunkAt(zeros[:500], 0, 3), {chunk.Sum([]byte("x")), 0, 7, 1}, chunkAt(zeros[:1000], 0, 7)}
		if isSealed {
			u.Chunks = append(u.Chunks, Chunk{u.Key().Derive(7, 1000), 0, 7, 1000})
		}
		for _, step := range []int{0, 1000} {
			from := newTrickle(c.stored, max(step, 1), len(c.stored))
			in, arrived := from.here, from.wait
			if step == 0 { // all have arrived
				in, arrived = c.stored, nil
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			batch, err := u.DecodeArriving(in, arrived)
			runtime.ReadMemStats(&after)
			if err != nil {
				t.Errorf("%s, %d bytes at a time: %v", name, step, err)
				continue
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 || batch.Memory() > 50_000 {
				t.Errorf("%s, %d bytes at a time: it allocates %d bytes, and takes %d", name, step, got, batch.Memory())
			}
			for i, want := range u.Chunks {
				plain, err := batch.Chunk(i)
				switch {
				case i == 1:
					if !errors.As(err, new(*chunk.InvalidError)) {
						t.Errorf("%s, %d bytes at a time: the wrong chunk: %q, %v", name, step, plain, err)
					}
				case err != nil || string(plain) != zeros[:want.Length]:
					t.Errorf("%s, %d bytes at a time: chunk %d has %d bytes, %v", name, step, i, len(plain), err)
				}
			}
		}
	}
	frame := zstded(t, zeros)
	u := Unit{Stored: int64(len(frame)), Codec: Zstd, Chunks: []Chunk{chunkAt("x", 0, 0)}}
	if _, err := u.Decode(frame); err == nil {
		t.Error("a zstd frame of 64 MiB was decoded")
	}
	from := newTrickle(frame, 1000, len(frame))
	if _, err := u.DecodeArriving(from.here, from.wait); err == nil {
		t.Error("a zstd frame of 64 MiB was decoded while it arrived")
	}
}
