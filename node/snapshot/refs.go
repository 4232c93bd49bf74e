package snapshot

import "sync"

// refs counts who needs each chain: the lazy snapshots in the store, and the
// calls to Claim and Mount that are under way. When the last one is gone it
// calls release, once, and makes whoever begins with the same chain meanwhile
// wait. So a chain that is being claimed anew is never taken down by the removal
// of the snapshot before.
type refs struct {
	release func(chain string)

	mu     sync.Mutex // guards the following; never held during release
	ended  *sync.Cond // some release ended
	counts map[string]*count
}

type count struct {
	stored    int // lazy snapshots
	pending   int // calls
	releasing bool
}

func newRefs(release func(string)) *refs {
	r := &refs{release: release, counts: map[string]*count{}}
	r.ended = sync.NewCond(&r.mu)
	return r
}

// begin and end stand around each use of the chain that a snapshot in the store
// does not, or not yet, vouch for.
func (r *refs) begin(chain string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.get(chain).releasing {
		r.ended.Wait()
	}
	r.get(chain).pending++
}

func (r *refs) end(chain string) { r.change(chain, func(c *count) { c.pending-- }) }

// add and remove follow the lazy snapshots of the chain in the store.
func (r *refs) add(chain string)    { r.change(chain, func(c *count) { c.stored++ }) }
func (r *refs) remove(chain string) { r.change(chain, func(c *count) { c.stored-- }) }

// stored returns how many lazy snapshots of the chain the store holds.
func (r *refs) stored(chain string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.counts[chain]; c != nil {
		return c.stored
	}
	return 0
}

// change applies f and, if nobody needs the chain any more, releases it.
func (r *refs) change(chain string, f func(*count)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.get(chain)
	f(c)
	if c.stored != 0 || c.pending != 0 {
		return
	}
	c.releasing = true
	r.mu.Unlock()
	r.release(chain)
	r.mu.Lock()
	delete(r.counts, chain)
	r.ended.Broadcast()
}

// get returns the count of the chain; mu is held.
func (r *refs) get(chain string) *count {
	c := r.counts[chain]
	if c == nil {
		c = &count{}
		r.counts[chain] = c
	}
	return c
}
