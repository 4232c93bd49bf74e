package directory

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"time"

	"lighter/durable"
	"lighter/format/chunk"
)

// machine is the Chains and the Trees of a node. A chain that is in use has users that only the
// kernel knows.
type machine struct {
	Chains
	mu      sync.Mutex
	holders map[string]int
	used    map[chunk.ID]bool
}

func (*machine) HasChain(string) bool { return true }

func (*machine) HasFile(string) bool { return false }

func (*machine) Open(string, uint32) (Stream, error) { return nil, syscall.ENOENT }

func (*machine) Tree(chain string) chunk.ID { return chunk.Sum([]byte(chain)) }

func (m *machine) Hold(chain string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holders[chain]++
}

func (m *machine) Drop(chain string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holders[chain]--; m.holders[chain] == 0 {
		delete(m.holders, chain)
	}
}

func (m *machine) IsShared(chain string, own int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.holders[chain] > own
}

func (m *machine) UnmountUnused(tree chunk.ID) (used bool, err error) { return m.used[tree], nil }

func (*machine) Mount(context.Context, string) (string, error) { return "/tree", nil }

// newFronts returns two directories of one node: one with names, one with links.
func newFronts(t *testing.T) (m *machine, fronts [2]*Directory) {
	log := slog.New(slog.DiscardHandler)
	m = &machine{holders: map[string]int{}, used: map[chunk.ID]bool{}}
	for n := range fronts {
		fronts[n] = Open(Config{Root: t.TempDir(), File: "list.json", Dir: "/dir", Idle: time.Minute, Links: m,
			Beside: fronts[0], Chains: m, Trees: m, Leftovers: &durable.Leftovers{Log: log}, Log: log})
	}
	return m, fronts
}

// addIdle adds an image that was mounted, and was not used for long.
func (d *Directory) addIdle(t *testing.T, k key) *image {
	t.Helper()
	return d.addIdleFor(t, k, userOf(k))
}

// addIdleFor is addIdle for a request of a user.
func (d *Directory) addIdleFor(t *testing.T, k key, user uint32) *image {
	t.Helper()
	i, err := d.admit(k, user)
	if err != nil {
		t.Fatal(err)
	}
	i.mounted, i.used = true, time.Now().Add(-time.Hour)
	return i
}

// put is addIdleFor for an image that has a place for sure. It does not write the list.
func (d *Directory) put(k key, user uint32) {
	d.config.Chains.Hold(k.chain)
	d.images[k] = &image{key: k, mounted: true, user: user, used: time.Now().Add(-time.Hour)}
}

func chainKey(n int) key { return key{fmt.Sprintf("plain/%d", n), target{chain: fmt.Sprint(n)}} }

// Images that are in both directories do not keep further ones from either.
func TestImagesInBothDirectories(t *testing.T) {
	m, fronts := newFronts(t)
	for n := range maxImages {
		for _, d := range fronts {
			d.put(chainKey(n), 0)
		}
	}
	for n := range 10 {
		for _, d := range fronts {
			d.addIdle(t, chainKey(maxImages+n))
		}
	}
	for _, d := range fronts {
		if len(d.images) != maxImages {
			t.Errorf("got %d images, want %d", len(d.images), maxImages)
		}
	}
	if len(m.holders) != maxImages {
		t.Errorf("%d chains are held, want %d", len(m.holders), maxImages)
	}
}

// Images that a container runtime has, too, take no place while they are idle. When it has given
// them up, they do again.
func TestImagesOfARuntime(t *testing.T) {
	m, fronts := newFronts(t)
	d := fronts[0]
	for n := range maxImages {
		d.put(chainKey(n), 0)
		m.Hold(fmt.Sprint(n))
	}
	for n := range 10 {
		d.addIdle(t, chainKey(maxImages+n))
	}
	for n := range maxImages {
		if m.Drop(fmt.Sprint(n)); m.holders[fmt.Sprint(n)] != 1 {
			t.Fatalf("chain %d was dropped before the runtime did", n)
		}
	}
	if d.sweep(t.Context()); len(d.images) != maxImages {
		t.Errorf("got %d images, want %d", len(d.images), maxImages)
	}
}

// Images that are mounted at the same time take no more than all places.
func TestAdmittedTogether(t *testing.T) {
	m, fronts := newFronts(t)
	d := fronts[0]
	for n := range maxImages - 1 {
		d.put(chainKey(n), 0)
		m.used[m.Tree(fmt.Sprint(n))] = true
	}
	var group sync.WaitGroup
	for n := range mountsTogether {
		group.Go(func() { _, _ = d.admit(chainKey(maxImages+n), 0) })
	}
	if group.Wait(); len(d.images) != maxImages {
		t.Errorf("got %d images, want %d", len(d.images), maxImages)
	}
}

// A tree that is used stays held: by the last image that has it.
func TestUsedTreeStays(t *testing.T) {
	m, fronts := newFronts(t)
	for n := range maxImages {
		m.used[m.Tree(fmt.Sprint(n))] = true
		for _, d := range fronts {
			d.put(chainKey(n), 0)
		}
	}
	fronts[0].addIdle(t, chainKey(maxImages))
	if len(m.holders) != maxImages+1 || m.holders["0"] != 1 {
		t.Errorf("%d chains are held, %q %d times; want all, and 0 once", len(m.holders), "0", m.holders["0"])
	}
	// What the first directory gave up is the second one's alone now, and in use.
	if _, err := fronts[1].admit(chainKey(maxImages), 0); err != nil {
		t.Error(err)
	}
	if m.holders["0"] != 1 {
		t.Errorf("a used chain has %d holders, want 1", m.holders["0"])
	}
	i := fronts[1].images[chainKey(0)]
	fronts[1].setMoved(i.key)
	if fronts[1].rest(i); i.gone {
		t.Error("an image was given up whose tree is in use")
	}
	clear(m.used)
	if fronts[1].rest(i); !i.gone {
		t.Error("an image was not given up whose tree is not in use any more")
	}
}

// An image that was never mounted does not keep the tree of another one, as it is given up if its
// mount fails. An image that is being mounted is not given up.
func TestImageThatIsMounted(t *testing.T) {
	m, fronts := newFronts(t)
	i := fronts[0].addIdle(t, chainKey(0))
	m.used[m.Tree("0")] = true
	fronts[0].setMoved(i.key)
	other, err := fronts[1].admit(chainKey(0), 0)
	if err != nil {
		t.Fatal(err)
	}
	if fronts[0].rest(i); i.gone {
		t.Error("an image was given up because of one that was never mounted")
	}
	other.mounted = true
	fronts[0].pending[i.key] = &pending{}
	if fronts[0].rest(i); i.gone {
		t.Error("an image was given up that is being mounted")
	}
	delete(fronts[0].pending, i.key)
	if fronts[0].rest(i); !i.gone {
		t.Error("an image was not given up although another one has its tree")
	}
}

// Images that are given up at the same time do not rely on each other.
func TestBothAreGivenUp(t *testing.T) {
	for range 20 {
		m, fronts := newFronts(t)
		m.used[m.Tree("0")] = true
		var group sync.WaitGroup
		for _, d := range fronts {
			i := d.addIdle(t, chainKey(0))
			d.setMoved(i.key)
			group.Go(func() { d.rest(i) })
		}
		group.Wait()
		if m.holders["0"] != 1 {
			t.Fatalf("a chain in use has %d holders, want 1", m.holders["0"])
		}
	}
}
