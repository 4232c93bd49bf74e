package prefetch

import (
	"math/rand/v2"
	"testing"

	"lighter/node/device"
)

// BenchmarkReadAt measures reads of cached chunks with all observers, several reads at a time.
func BenchmarkReadAt(b *testing.B) {
	d, s := shelved(b, Options{})
	for id := range s.chunks {
		s.cached[id] = true
	}
	e, err := d.Extents().Extent(d.Extents().Extents - 1)
	if err != nil {
		b.Fatal(err)
	}
	const size = 128 << 10
	b.SetBytes(size)
	b.RunParallel(func(p *testing.PB) {
		r := rand.New(rand.NewPCG(1, rand.Uint64()))
		dst := make([]byte, size)
		for p.Next() {
			if _, err := d.ReadAt(b.Context(), dst, r.Int64N(e.End()-size)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkTriggers measures the check, made for each read, whether the read triggers a startup
// pack.
func BenchmarkTriggers(b *testing.B) {
	h := newStartHub(b)
	d := openStart(b, h, Options{Limit: plenty})
	for name, armed := range map[string]bool{"none": false, "some": true} {
		b.Run(name, func(b *testing.B) {
			d.startup.begun = true
			d.startup.triggers.Store(nil)
			if armed {
				d.startup.arm()
				d.startup.end()
			}
			for b.Loop() {
				d.startup.Observe(device.Read{Length: 4096, Missing: -1})
			}
		})
	}
}
