package ingest

import (
	"testing"
	"time"
)

// The wait for another worker grows with the layer, so that two images with a large common layer
// do not both split it.
func TestLongestWait(t *testing.T) {
	for size, want := range map[int64]time.Duration{
		0:             claimTime,
		600e6:         claimTime + 10*time.Second,
		1_000_000_000: claimTime + 16666*time.Millisecond,
	} {
		if got := longestWait(size).Truncate(time.Millisecond); got != want {
			t.Errorf("a layer of %d bytes: got %s, want %s", size, got, want)
		}
	}
}
