package index

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"
)

// BenchmarkMap looks up extents as faults do: concurrently, all over the device.
func BenchmarkMap(b *testing.B) {
	m, whole := made(b, many(b, 2000))
	var extents bytes.Buffer
	if _, err := Receive(bytes.NewReader(whole), m.ID(), &extents, io.Discard); err != nil {
		b.Fatal(err)
	}
	x, err := OpenMap(bytes.NewReader(extents.Bytes()), m.ID(), NewPages(64))
	if err != nil {
		b.Fatal(err)
	}
	b.RunParallel(func(p *testing.PB) {
		r := rand.New(rand.NewPCG(1, rand.Uint64()))
		for p.Next() {
			i, err := x.Find(r.Int64N(m.DeviceSize))
			for range 4 {
				if err == nil && i < x.Extents {
					_, err = x.Extent(i)
				}
				i++
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
