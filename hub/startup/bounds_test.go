package startup

import (
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"lighter/format/chunk"
)

// All domains together keep to one bound of the device sizes and of the uses in memory. A domain
// does not see the sizes that another domain has cached.
func TestDomainsShareBounds(t *testing.T) {
	one, other := &trees{}, &trees{}
	var sizes deviceSizes
	tree := chunk.Sum([]byte("a"))
	sizes.set(treeOf{one, tree}, 7)
	if size, known := sizes.get(treeOf{one, tree}); size != 7 || !known {
		t.Errorf("size %d, known: %v, want 7, true", size, known)
	}
	if _, known := sizes.get(treeOf{other, tree}); known {
		t.Error("a domain knows the size of a tree of another domain")
	}
	for n := range 2 * maxSizes {
		sizes.set(treeOf{[]*trees{one, other}[n%2], chunk.Sum([]byte{byte(n), byte(n >> 8)})}, 1)
	}
	if len(sizes.all) > maxSizes {
		t.Errorf("%d sizes in memory, want %d at most", len(sizes.all), maxSizes)
	}

	room := semaphore.NewWeighted(2)
	a := &quota{room: room, used: map[chunk.ID]time.Time{}}
	b := &quota{room: room, used: map[chunk.ID]time.Time{}}
	trees := []chunk.ID{tree, chunk.Sum([]byte("b")), chunk.Sum([]byte("c"))}
	a.use(trees[0])
	a.use(trees[0])
	b.use(trees[1])
	b.use(trees[2])
	if len(a.used) != 1 || len(b.used) != 1 {
		t.Errorf("%d and %d uses in memory, want one of each domain", len(a.used), len(b.used))
	}
}
