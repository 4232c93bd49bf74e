package trees

import (
	"maps"
	"slices"
	"sync"

	"lighter/format/chunk"
)

// table has the open trees of a Store, and the lost trees. newTable makes it.
type table struct {
	mu     sync.Mutex // guards what follows
	served map[chunk.ID]*OpenTree
	early  []*OpenTree        // open before they are mounted, to prefetch their starts; oldest first
	ended  bool               // starts are no longer prefetched
	lost   map[chunk.ID]error // why a tree could not be served after a restart, or how it is damaged
}

func newTable() table {
	return table{served: map[chunk.ID]*OpenTree{}, lost: map[chunk.ID]error{}}
}

// Served returns a tree whose device is served, or nil.
func (r *table) Served(tree chunk.ID) *OpenTree {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.served[tree]
}

// allServed returns the served trees.
func (r *table) allServed() map[chunk.ID]*OpenTree {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.served)
}

// addServed adds a served tree. The tree is no longer lost.
func (r *table) addServed(o *OpenTree) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.served[o.Tree] = o
	delete(r.lost, o.Tree)
}

// takeServed removes a served tree and returns it, or nil. The caller owns the tree now.
func (r *table) takeServed(tree chunk.ID) *OpenTree {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.served[tree]
	delete(r.served, tree)
	return o
}

// addEarly keeps a tree open for takeEarly. It returns the tree that the caller has to close: this
// tree, the tree that was kept longest, or nil.
func (r *table) addEarly(o *OpenTree) (closing *OpenTree) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.served[o.Tree] != nil || r.findEarly(o.Tree) >= 0 || !o.Device.Begin() {
		return o
	}
	if len(r.early) == maxEarly {
		closing = r.early[0]
		r.early = slices.Delete(r.early, 0, 1)
	}
	r.early = append(r.early, o)
	return closing
}

// findEarly returns the position of a tree in r.early, or -1; r.mu is held.
func (r *table) findEarly(tree chunk.ID) int {
	return slices.IndexFunc(r.early, func(o *OpenTree) bool { return o.Tree == tree })
}

// takeEarly removes a tree that is open before it is mounted, and returns it, or nil. The caller
// owns the tree now.
func (r *table) takeEarly(tree chunk.ID) *OpenTree {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.findEarly(tree)
	if i < 0 {
		return nil
	}
	o := r.early[i]
	r.early = slices.Delete(r.early, i, i+1)
	return o
}

// endEarly removes all trees that are open before they are mounted, and returns them. The caller
// owns them now. From then on, addEarly keeps no tree.
func (r *table) endEarly() []*OpenTree {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.early
	r.early, r.ended = nil, true
	return list
}

// opened returns the open instances of a tree: the served one, and the one that was opened before a
// mount to prefetch the start.
func (r *table) opened(tree chunk.ID) (list []*OpenTree) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o := r.served[tree]; o != nil {
		list = append(list, o)
	}
	if i := r.findEarly(tree); i >= 0 {
		list = append(list, r.early[i])
	}
	return list
}

// setLost adds a tree to those that Lost returns, or removes it if cause is nil.
func (r *table) setLost(tree chunk.ID, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cause == nil {
		delete(r.lost, tree)
	} else {
		r.lost[tree] = cause
	}
}

// Lost returns trees that Recover could not serve or Scrub found damaged, with the causes. A tree
// leaves the list when it is served anew or removed.
func (r *table) Lost() map[chunk.ID]error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.lost)
}
