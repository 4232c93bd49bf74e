package ingest

import (
	"testing"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/oci"
	"lighter/wire"
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

// A worker waits while the owner of a layer of 600 MB reads common layers, and as long again. It
// does not wait for an owner that is too slow, or for longer than it would take to split the layer
// if the hub's own registry stores the layer.
func TestWaitDependsOnProgress(t *testing.T) {
	const size = 600e6
	alone := longestWait(size)
	for name, test := range map[string]struct {
		stored bool
		rate   float64       // at which the owner reads, in bytes a second
		until  time.Duration // when the owner stops reading
		want   time.Duration // length of the wait, rounded down
	}{
		"the owner hangs":           {want: alone},
		"the owner reads, then not": {rate: 10e6, until: time.Minute, want: 2*time.Minute + alone},
		"the owner is too slow":     {rate: slowRate * 0.9, until: time.Hour, want: alone},
		"the layer is stored":       {stored: true, rate: 10e6, until: time.Minute, want: alone},
	} {
		w, begun := wait{layer: oci.Layer{Size: size}, stored: test.stored}, time.Now()
		waited := time.Duration(0)
		for read := int64(7e6); !w.look(begun.Add(waited), catalog.Lease{Job: 1}, read); waited += time.Second {
			if waited < test.until {
				read += int64(test.rate)
			}
		}
		if got := waited - time.Second; got != test.want {
			t.Errorf("%s: waited %s, want %s", name, got, test.want)
		}
	}
}

// A wait begins again when another worker has claimed the layer.
func TestWaitBeginsAgainWithANewOwner(t *testing.T) {
	w, begun := wait{layer: oci.Layer{Size: 1}}, time.Now()
	for i, test := range []struct {
		after time.Duration
		owner int64
		want  bool
	}{
		{0, 1, false}, {claimTime, 1, false}, {2 * claimTime, 2, false}, {3 * claimTime, 2, false},
		{4 * claimTime, 2, true},
	} {
		if got := w.look(begun.Add(test.after), catalog.Lease{Job: test.owner}, 0); got != test.want {
			t.Errorf("look %d: over: %v, want %v", i, got, test.want)
		}
	}
}

// Only layers that both images have count as progress.
func TestProgressOfCommonLayers(t *testing.T) {
	layers := []oci.Layer{{Digest: "sha256:aaaaaaaaaaaaaaaa"}, {Digest: "sha256:bbbbbbbbbbbbbbbb"}}
	line := func(step, digest string, bytes int64) wire.Progress {
		return wire.Progress{Step: step, Item: wire.ShortDigest(digest), Bytes: bytes}
	}
	got := bytesOf(layers, []wire.Progress{line(LayerStep, layers[0].Digest, 1), line(LayerStep, layers[1].Digest, 2),
		line(LayerStep, "sha256:cccccccccccccccc", 4), line("copy", layers[0].Digest, 8)})
	if got != 3 {
		t.Errorf("%d bytes, want the 3 of the two layers", got)
	}
}
