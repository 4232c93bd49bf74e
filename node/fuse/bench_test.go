package fuse

import (
	"testing"
	"time"
)

// BenchmarkCounting measures how long it takes to count an answered read, in several goroutines at
// a time.
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
