package disk

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"lighter/format/chunk"
)

// BenchmarkStream puts a working set that does not fit into a full cache: each chunk evicts
// another. It also reports how long one Put takes, because the other chunks of a unit wait for it.
func BenchmarkStream(b *testing.B) {
	for name, pinned := range map[string]int64{"": 0, "quarter-pinned": 1 << 28} {
		b.Run(name, func(b *testing.B) {
			c := open(b, b.TempDir(), 1<<30)
			_, plain := data(1, 64<<10)
			ref := chunk.Ref{Length: 64 << 10}
			n := uint64(0)
			put := func() {
				n++
				binary.BigEndian.PutUint64(ref.ID[:], n*0x9e3779b97f4a7c15)
				c.Put(ref, plain)
			}
			var set Set
			for c.Stats().Evicted < 1<<20 {
				put()
				if int64(n)*64<<10 < 3*pinned && n%3 == 0 {
					set.Add(ref)
				}
				if int64(n)*64<<10 == 3*pinned {
					if err := c.Pin(chunk.ID{1}, "x", &set); err != nil {
						b.Fatal(err)
					}
				}
			}
			var took []time.Duration
			b.SetBytes(64 << 10)
			for b.Loop() {
				begun := time.Now()
				put()
				took = append(took, time.Since(begun))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*999/1000].Microseconds()), "µs-p99.9")
			b.ReportMetric(float64(took[len(took)-1].Microseconds()), "µs-max")
			if s := c.Stats(); s.Failed > 0 || s.Used > s.Limit {
				b.Errorf("%+v", s)
			}
		})
	}
}

// BenchmarkReadWhileFull reads a cached chunk while others are put and evicted as fast as possible.
func BenchmarkReadWhileFull(b *testing.B) {
	c := open(b, b.TempDir(), 1<<30)
	_, plain := data(1, 64<<10)
	hot, hotPlain := data(2, 4096)
	c.Put(hot, hotPlain)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ref := chunk.Ref{Length: 64 << 10}
		for n := uint64(1); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			binary.BigEndian.PutUint64(ref.ID[:], n*0x9e3779b97f4a7c15)
			c.Put(ref, plain)
		}
	}()
	var took []time.Duration
	dst := make([]byte, 4096)
	for b.Loop() {
		begun := time.Now()
		if !c.Read(hot, 0, dst) {
			c.Put(hot, hotPlain)
		}
		took = append(took, time.Since(begun))
	}
	close(stop)
	<-stopped
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*9999/10000].Microseconds()), "µs-p99.99")
	b.ReportMetric(float64(took[len(took)-1].Microseconds()), "µs-max")
}
