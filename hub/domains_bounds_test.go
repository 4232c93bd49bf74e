package hub_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/wire"
)

// All domains of a process share one bound for layers of other registries on the disk, one for
// tables of packs, and one for counts of senders in memory.
func TestDomainsShareBounds(t *testing.T) {
	t.Parallel()
	h := startHub(t, withTeam)
	team := h.in("team")
	if h.Tables() != team.Tables() || h.Senders() != team.Senders() {
		t.Error("the domains have caches of their own")
	}
	const layers, keptLayers = 12, 16 // layers of each domain; layers that the process keeps
	var i fakeImage
	for n := range uint64(layers) {
		i.layers = append(i.layers, fakeLayer{tar: layer(n)})
	}
	r := startRegistry(t, i)
	h.added(wire.Add{Source: r.source(), Name: "a:1"})
	team.added(wire.Add{Source: r.source(), Name: "team/a:1"})
	for _, repository := range []string{"a", "team/a"} {
		for _, l := range i.layers {
			d, b := layerOf(l.tar)
			h.expectBlob(repository, d, b)
		}
	}
	n := 0
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if n = fetchedLayers(t, h.config.Root); n <= keptLayers { // after the last reader has gone
			return
		}
	}
	t.Errorf("%d layers without a reader are kept, want %d at most", n, keptLayers)
}

// fetchedLayers returns how many layers of other registries this process has in open files below a
// directory. The files were unlinked, so only /proc shows them.
func fetchedLayers(t *testing.T, root string) (n int) {
	t.Helper()
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		file, _ := os.Readlink(fd) // fd may have been closed
		if strings.HasPrefix(file, root+"/") && strings.Contains(file, "/upstream-") {
			n++
		}
	}
	return n
}
