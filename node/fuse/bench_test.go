package fuse

import (
	"testing"
	"time"
)

// BenchmarkCounting measures how long it takes to count an answered read while several goroutines
// count reads.
func BenchmarkCounting(b *testing.B) {
	var c counters
	f := &file{}
	b.RunParallel(func(p *testing.PB) {
		r := &read{file: f, size: pageSize, since: time.Now()}
		for p.Next() {
			c.countAnswer(r, 0)
		}
	})
}
