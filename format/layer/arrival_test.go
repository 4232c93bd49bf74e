package layer

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/klauspost/compress/gzip"

	"lighter/format/chunk"
)

// trickle gives the stored bytes of a unit step by step, no sooner than they are waited for. Those
// that have not arrived are wrong.
type trickle struct {
	whole, here []byte
	arrived     int
	step        int
	fails       int // no byte from this one on arrives
}

func newTrickle(whole []byte, step, fails int) *trickle {
	return &trickle{whole: whole, here: bytes.Repeat([]byte{0xa5}, len(whole)), step: step, fails: fails}
}

func (t *trickle) wait(n int) (int, error) {
	for t.arrived < n {
		to := min(t.arrived+t.step, len(t.whole), t.fails)
		if to == t.arrived {
			return t.arrived, io.ErrUnexpectedEOF
		}
		copy(t.here[t.arrived:to], t.whole[t.arrived:to])
		t.arrived = to
	}
	return t.arrived, nil
}

// A unit that is decoded while it arrives has the same chunks, however its bytes are divided.
func TestDecodeArriving(t *testing.T) {
	s := newSample(t)
	for i, u := range s.units {
		stored := s.blob[u.Offset:][:u.Stored]
		whole, err := u.Decode(slices.Clip(stored))
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []int{1, 7, 4096, len(stored)} {
			from := newTrickle(stored, step, len(stored))
			batch, err := u.DecodeArriving(from.here, from.wait)
			if err != nil {
				t.Fatalf("unit %d, %d bytes at a time: %v", i, step, err)
			}
			for c := len(u.Chunks) - 1; c >= 0; c-- { // the last one may not have arrived
				want, _ := whole.Chunk(c)
				if got, err := batch.Chunk(c); err != nil || !bytes.Equal(got, want) {
					t.Errorf("unit %d, %d bytes at a time: chunk %d has %d bytes, %v, want %d", i, step, c, len(got),
						err, len(want))
				}
			}
			if batch.Memory() != whole.Memory() {
				t.Errorf("unit %d: its batch takes %d bytes, want %d", i, batch.Memory(), whole.Memory())
			}
		}
	}
}

// addUncompressed adds units with a seal and a derived chunk. Any bytes of the right length decode
// to a chunk, so only the seal notices wrong ones.
func (s *sample) addUncompressed(t *testing.T) {
	t.Helper()
	plain := bytes.Repeat([]byte("plain bytes "), 400)
	var member bytes.Buffer
	w, err := gzip.NewWriterLevel(&member, gzip.NoCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil { // without a checksum
		t.Fatal(err)
	}
	block := member.Bytes()[10:] // after the member's header
	for _, u := range []Unit{{Codec: Stored}, {Codec: Gzip}, {Codec: Deflate}} {
		stored := map[Codec][]byte{Stored: plain, Gzip: member.Bytes(), Deflate: block}[u.Codec]
		for _, u.Seal = range []Seal{SealedStored, SealedPlain} {
			u.Digest = chunk.Sum(plain)
			if u.Seal == SealedStored {
				u.Digest = chunk.Sum(stored)
			}
			u.Chunks = []Chunk{{u.Key().Derive(0, uint32(len(plain))), 0, 0, uint32(len(plain))}}
			s.add(stored, u)
		}
	}
}

// A unit that is cut off, or of which a bit is wrong, gives no wrong chunk. If the seal is that of
// the stored bytes, it gives none at all, even if the wrong bit is not part of any chunk.
func TestDamagedArrival(t *testing.T) {
	s := newSample(t)
	s.addUncompressed(t)
	for i, u := range s.units {
		stored := s.blob[u.Offset:][:u.Stored]
		whole, err := u.Decode(bytes.Clone(stored))
		if err != nil {
			t.Fatal(err)
		}
		damage := func(at int, bit byte) {
			flipped := bytes.Clone(stored)
			flipped[at] ^= bit
			for name, from := range map[string]*trickle{
				"cut": newTrickle(stored, 100, at), "flipped": newTrickle(flipped, 100, len(stored)),
			} {
				batch, err := u.DecodeArriving(from.here, from.wait)
				if u.Seal == SealedStored && err == nil {
					t.Fatalf("unit %d, %s at %d, was decoded", i, name, at)
				}
				for c := 0; err == nil && c < len(u.Chunks); c++ {
					var plain []byte
					plain, err = batch.Chunk(c)
					if want, _ := whole.Chunk(c); err == nil && !bytes.Equal(plain, want) {
						t.Fatalf("unit %d, %s at %d: chunk %d is wrong", i, name, at, c)
					}
				}
				if err != nil && !errors.As(err, new(*chunk.InvalidError)) {
					t.Fatalf("unit %d, %s at %d: %v, want an InvalidError", i, name, at, err)
				}
			}
		}
		for at := 0; at < len(stored); at += 1 + len(stored)/19 {
			damage(at, 4)
		}
		damage(len(stored)-1, 0x80) // of a span, the first bits of the next block
	}
}
