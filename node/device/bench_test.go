package device

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
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

// BenchmarkFault answers one fault after the other whose chunks are here, from the
// request to the answer, without the kernel.
func BenchmarkFault(b *testing.B) {
	d, s, image := build(b)
	for id := range s.chunks {
		s.here[id] = true
	}
	server, k, _ := connect(b, resending)
	id := testID("a")
	if _, err := server.Add(id, int64(len(image))/pageSize*pageSize, d); err != nil {
		b.Fatal(err)
	}
	body := bodyOf(fuse.ReadIn{Offset: 64 << 10, Size: pageSize})
	for unique := uint64(2); b.Loop(); unique += 2 {
		k.send(opRead, unique, nodeID(id), body)
		if a := k.next(); a.errno != 0 {
			b.Fatal(a.errno)
		}
	}
}

// BenchmarkCounting counts answered reads, several at a time.
func BenchmarkCounting(b *testing.B) {
	d, _, _ := build(b)
	var c counters
	b.RunParallel(func(p *testing.PB) {
		r := &read{file: &file{device: d}, size: pageSize, since: time.Now()}
		for p.Next() {
			c.answered(r, 0)
		}
	})
}
