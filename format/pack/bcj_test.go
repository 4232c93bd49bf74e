package pack

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"lighter/format/chunk"
)

func TestFilter(t *testing.T) {
	for name, c := range map[string]struct{ plain, filtered string }{
		"nothing":             {"", ""},
		"a call":              {"e801000000", "e806000000"},
		"a jump back":         {"90e9f0ffffff90", "90e9f6ffffff90"},
		"a call to address 0": {"e8fbffffff", "e800000000"},
		"wraps around":        {"e8ffffff00", "e8040000ff"},
		"too far":             {"e800000001e800000000", "e800000001e80a000000"},
		"at the end":          {"9090e8000000", "9090e8000000"},
		"overlapping":         {"e8e800000000", "e8ed00000000"},
		"after eight bytes":   {"00000000000000000000e800000000", "00000000000000000000e80f000000"},
	} {
		b, _ := hex.DecodeString(c.plain)
		if filter(b); hex.EncodeToString(b) != c.filtered {
			t.Errorf("%s: filtered to %x, want %s", name, b, c.filtered)
		}
		if unfilter(b); hex.EncodeToString(b) != c.plain {
			t.Errorf("%s: unfiltered to %x, want %s", name, b, c.plain)
		}
	}
}

// code returns n bytes similar to a compiler's: calls of few functions from many places.
func code(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 0, n)
	for len(b) < n {
		target := r.IntN(8) * 5000
		distance := uint32(target - len(b) - 5)
		b = append(b, 0xE8, byte(distance), byte(distance>>8), byte(distance>>16), byte(distance>>24))
		for range 8 + r.IntN(24) {
			b = append(b, byte(r.IntN(0x80)))
		}
	}
	return b
}

func TestCodeIsFiltered(t *testing.T) {
	noise := make([]byte, 50_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	for name, c := range map[string]struct {
		plain    []byte
		filtered bool
	}{"code": {code(50_000), true}, "noise": {noise, false}, "text": {bytes.Repeat([]byte("the quick brown fox "), 2000), false}} {
		var b UnitBuilder
		b.Add(chunk.Sum(c.plain), c.plain)
		unit := b.Encode(nil, encoder(t))
		if filtered := unit[unitFlags]&flagFiltered != 0; filtered != c.filtered {
			t.Errorf("%s: filtered = %t, want %t", name, filtered, c.filtered)
		}
		if again := b.Encode(nil, encoder(t)); !bytes.Equal(again, unit) {
			t.Errorf("%s: encoded twice to different bytes", name)
		}
		plain := encoder(t).EncodeAll(c.plain, nil)
		if c.filtered && len(unit) >= len(plain) {
			t.Errorf("%s: %d bytes filtered, %d unfiltered, want fewer", name, len(unit), len(plain))
		}
		u, err := DecodeUnit(unit)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := u.Chunk(0); err != nil || !bytes.Equal(got, c.plain) {
			t.Errorf("%s: the chunk has other bytes (%v)", name, err)
		}
	}
}

func FuzzFilter(f *testing.F) {
	f.Add(code(200))
	f.Add([]byte("\xe8\xe8\xe9\x00\x00\xff\xe8\xff\x00\x00\xff\xff\xe9\x00"))
	f.Fuzz(func(t *testing.T, plain []byte) {
		b := bytes.Clone(plain)
		filter(b)
		want := bytes.Clone(plain) // by the steps of docs/format.md
		for i := 0; i+5 <= len(want); i++ {
			if want[i] != 0xE8 && want[i] != 0xE9 {
				continue
			}
			if want[i+4] == 0 || want[i+4] == 0xFF {
				n := uint32(want[i+1]) | uint32(want[i+2])<<8 | uint32(want[i+3])<<16 | uint32(want[i+4])<<24
				n = (n + uint32(i) + 5) % (1 << 25)
				want[i+1], want[i+2], want[i+3], want[i+4] = byte(n), byte(n>>8), byte(n>>16), byte(0-n>>24)
			}
			i += 4
		}
		if !bytes.Equal(b, want) {
			t.Fatalf("filtered to %x, want %x", b, want)
		}
		if unfilter(b); !bytes.Equal(b, plain) {
			t.Fatalf("unfiltered to %x, want %x", b, plain)
		}
	})
}

func BenchmarkUnfilter(b *testing.B) {
	filtered := code(512 << 10)
	filter(filtered)
	b.SetBytes(int64(len(filtered)))
	for b.Loop() {
		unfilter(filtered)
	}
}
