package device

import (
	"math/rand/v2"
	"testing"
)

// BenchmarkReadAt answers faults whose chunks are here, several at a time.
func BenchmarkReadAt(b *testing.B) {
	d, s, image := build(b)
	for id := range s.chunks {
		s.here[id] = true
	}
	b.SetBytes(128 << 10)
	b.RunParallel(func(p *testing.PB) {
		r := rand.New(rand.NewPCG(1, rand.Uint64()))
		dst := make([]byte, 128<<10)
		for p.Next() {
			if err := d.ReadAt(b.Context(), dst, r.Int64N(int64(len(image)-len(dst)))); err != nil {
				b.Fatal(err)
			}
		}
	})
}
