package resolver

import (
	"maps"
	"slices"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
)

// use is what this machine has to do with a chain.
type use struct {
	holders   int
	statement *index.Statement // on disk, and verified unless it is refused; nil: the chain was only claimed, or its tree is not known
	refused   *refusal         // why the statement on disk cannot be verified; nil: it can
}

// Hold keeps a chain's tree from going until Drop is called as often.
func (r *Resolver) Hold(chain string) {
	r.held.Lock()
	defer r.held.Unlock()
	r.use(chain).holders++
}

// HoldAll keeps the trees of all chains that were here when the node started, for as long as it
// runs: nobody knows which of them something uses.
func (r *Resolver) HoldAll() {
	r.held.Lock()
	defer r.held.Unlock()
	for _, u := range r.uses {
		u.holders++
	}
}

// Drop ends a Hold. With the last one the chain's tree goes, unless another chain
// on this machine has the same.
func (r *Resolver) Drop(chain string) {
	r.held.Lock()
	defer r.held.Unlock()
	if u := r.uses[chain]; u != nil && u.holders > 0 {
		u.holders--
		r.release(chain)
	}
}

// dropLater ends a Hold, and gives somebody else the time to begin one before the
// tree goes.
func (r *Resolver) dropLater(chain string) {
	r.held.Lock()
	defer r.held.Unlock()
	r.uses[chain].holders--
	time.AfterFunc(memory, func() {
		r.held.Lock()
		defer r.held.Unlock()
		r.release(chain)
	})
}

// use returns the use of the chain; held is held.
func (r *Resolver) use(chain string) *use {
	u := r.uses[chain]
	if u == nil {
		u = &use{}
		r.uses[chain] = u
	}
	return u
}

func (r *Resolver) holders(chain string) int {
	r.held.Lock()
	defer r.held.Unlock()
	if u := r.uses[chain]; u != nil {
		return u.holders
	}
	return 0
}

// statement returns the verified statement of a chain on disk, or nil.
func (r *Resolver) statement(chain string) *index.Statement {
	r.held.Lock()
	defer r.held.Unlock()
	if u := r.uses[chain]; u != nil && u.refused == nil {
		return u.statement
	}
	return nil
}

// tree returns the tree with which a chain came to this machine, or zero if none did or it
// is not known any more. A statement that is refused was verified when it was kept, so what
// holds the chain goes on with the tree that it names.
func (r *Resolver) tree(chain string) chunk.ID {
	r.held.Lock()
	defer r.held.Unlock()
	if u := r.uses[chain]; u != nil && u.statement != nil {
		return u.statement.Tree
	}
	return chunk.ID{}
}

// isHere tells whether a chain has a verified statement, and its tree is on this machine.
func (r *Resolver) isHere(chain string) bool {
	s := r.statement(chain)
	return s != nil && r.trees.Has(s.Tree)
}

// release lets go of a chain that nobody holds. held is held, but not while the
// tree goes, which may take a moment; whoever wants that very tree waits in keep.
func (r *Resolver) release(chain string) {
	u := r.uses[chain]
	if u == nil || u.holders > 0 {
		return
	}
	delete(r.uses, chain)
	if u.statement == nil && u.refused == nil {
		return
	}
	if err := r.removeStatement(chain); err != nil {
		r.log.Warn("release a chain", "chain", chain, "cause", err)
	}
	if u.refused != nil {
		r.sweepTrees() // which of them was the chain's may not be known
	} else if r.sharers(u.statement.Tree) == 0 {
		r.remove(u.statement.Tree)
	}
}

// sharers returns how many chains on this machine have the tree, as far as that is known;
// held is held.
func (r *Resolver) sharers(tree chunk.ID) (n int) {
	for _, u := range r.uses {
		if u.statement != nil && u.statement.Tree == tree {
			n++
		}
	}
	return n
}

// remove removes a tree; held is held, but not meanwhile. One that cannot go
// stays until the next Sweep.
func (r *Resolver) remove(tree chunk.ID) {
	r.leaving[tree] = true
	r.held.Unlock()
	err := r.trees.Remove(tree)
	r.held.Lock()
	delete(r.leaving, tree)
	r.left.Broadcast()
	if err != nil {
		r.log.Warn("a tree that is not needed stays until the node starts again", "tree", tree.Short(), "cause", err)
	}
}

// Sweep removes what nobody holds: what a crash left behind. It is for the time
// after those who were there before have called Hold, and before the first
// request.
func (r *Resolver) Sweep() {
	r.held.Lock()
	defer r.held.Unlock()
	for _, chain := range slices.Collect(maps.Keys(r.uses)) {
		r.release(chain)
	}
	r.sweepFiles()
	r.sweepTrees()
}

// sweepTrees removes the trees that no chain has. While a chain is held of which it is not
// known which tree it has, all of them stay; held is held, but not while a tree goes.
func (r *Resolver) sweepTrees() {
	trees, err := r.orphans()
	if err != nil {
		r.log.Warn("look for trees that are not needed", "cause", err)
	}
	for _, u := range r.uses {
		if len(trees) > 0 && r.isUnknown(u) {
			r.log.Warn("trees stay that no statement names: one that is refused may have named them", "trees", trees)
			return
		}
	}
	for _, tree := range trees {
		if r.sharers(tree) == 0 {
			r.remove(tree)
		}
	}
}

// orphans returns the trees on this machine that no statement names; held is held.
func (r *Resolver) orphans() ([]chunk.ID, error) {
	trees, err := r.trees.List()
	return slices.DeleteFunc(trees, func(tree chunk.ID) bool { return r.leaving[tree] || r.sharers(tree) > 0 }), err
}

// Statements lists the statements on disk that can be read. Of those among them that are
// refused Refused says why.
func (r *Resolver) Statements() []index.Statement {
	r.held.Lock()
	defer r.held.Unlock()
	return r.list()
}

func (r *Resolver) list() (all []index.Statement) {
	for _, u := range r.uses {
		if u.statement != nil {
			all = append(all, *u.statement)
		}
	}
	return all
}

// Usage returns what the next Drop of the chain would free on disk: bytes and
// files.
func (r *Resolver) Usage(chain string) (bytes, files int64) {
	r.held.Lock()
	u := r.uses[chain]
	frees := u != nil && u.holders == 1 && u.statement != nil && r.sharers(u.statement.Tree) == 1
	r.held.Unlock()
	if !frees {
		return 0, 0
	}
	return r.trees.Size(u.statement.Tree)
}
