package resolver

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
)

// Chains has the chains that this machine uses: the number of holders of each chain, and the signed
// statement of its tree, in memory and on disk. It is safe for concurrent use.
//
// A holder of a chain is one of its users: a snapshot, a call to Claim or Mount, or an
// administrative mount. It calls Hold, and later Drop. With the last Drop the chain's tree is
// removed.
type Chains struct {
	dir   string
	trees TreeStore
	keys  *Keys
	log   *slog.Logger

	mu       sync.Mutex // guards what follows, and the statements on disk
	states   map[string]*chainState
	removing map[chunk.ID]bool // trees that are being removed
	writing  map[string]bool   // chains whose statements are being written
	finished *sync.Cond        // a removal or a write has ended
}

// TreeStore is what Chains need of the trees on this machine.
type TreeStore interface {
	Has(tree chunk.ID) bool
	List() ([]chunk.ID, error)
	Remove(tree chunk.ID) error
	Size(tree chunk.ID) (bytes, inodes int64)
}

// chainState is the state of one chain on this machine.
type chainState struct {
	holders int
	// statement is on disk, and verified unless it is refused. nil: the chain was only claimed, or
	// its tree is unknown.
	statement *index.Statement
	refused   *refusal // why the statement on disk cannot be verified; nil: it is verified
}

// openChains reads the statements below root. A statement that cannot be verified is refused: no
// pull can claim a chain with it, and it is requested again (RenewStatements). While the chain has
// holders, its tree stays.
func openChains(root string, trees TreeStore, keys *Keys, log *slog.Logger) (*Chains, error) {
	c := &Chains{dir: filepath.Join(root, "chains"), trees: trees, keys: keys, log: log,
		states: map[string]*chainState{}, removing: map[chunk.ID]bool{}, writing: map[string]bool{}}
	c.finished = sync.NewCond(&c.mu)
	err := os.MkdirAll(c.dir, 0o700)
	if err == nil {
		err = c.load()
	}
	if err != nil {
		return nil, fmt.Errorf("open the statements of chains: %w", err)
	}
	return c, nil
}

// Hold adds a holder of a chain. The chain's tree stays until Drop was called as often as Hold.
func (c *Chains) Hold(chain string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state(chain).holders++
}

// HoldAll adds to each known chain a holder that is never dropped. It is called at the start of a
// node that has lost the list of its administrative mounts.
func (c *Chains) HoldAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.states {
		s.holders++
	}
}

// Drop ends a Hold. If the chain has no other holder, its tree is removed, unless another chain on
// this machine has the same tree.
func (c *Chains) Drop(chain string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.states[chain]; s != nil && s.holders > 0 {
		s.holders--
		c.release(chain)
	}
}

// dropLater ends a Hold. The tree stays for answerTTL, so that another caller can hold the chain.
// It is removed earlier if that caller drops the chain earlier.
func (c *Chains) dropLater(chain string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.states[chain]; s != nil && s.holders > 0 { // a Drop without a Hold has taken it, as in Drop
		s.holders--
	}
	time.AfterFunc(answerTTL, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.release(chain)
	})
}

// state returns the state of a chain, and adds the chain if it is unknown; mu is held.
func (c *Chains) state(chain string) *chainState {
	s := c.states[chain]
	if s == nil {
		s = &chainState{}
		c.states[chain] = s
	}
	return s
}

// stateOf returns a copy of the state of a chain, which may be empty.
func (c *Chains) stateOf(chain string) chainState {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.states[chain]; s != nil {
		return *s
	}
	return chainState{}
}

// Tree returns the tree that a chain's statement names, or zero if the statement is missing or
// unreadable. A refused statement counts, too: it was verified when it arrived, so holders of the
// chain still use its tree.
func (c *Chains) Tree(chain string) chunk.ID {
	if s := c.stateOf(chain).statement; s != nil {
		return s.Tree
	}
	return chunk.ID{}
}

// isCached reports whether a chain has a verified statement, and its tree is on this machine.
func (c *Chains) isCached(chain string) bool {
	s := c.stateOf(chain)
	return s.statement != nil && s.refused == nil && c.trees.Has(s.statement.Tree)
}

// release forgets a chain without holders, and removes its tree, unless another chain has the same
// tree. mu is held, except while the tree is removed. keep waits for the end of the removal.
func (c *Chains) release(chain string) {
	s := c.states[chain]
	if s == nil || s.holders > 0 {
		return
	}
	delete(c.states, chain)
	if s.statement == nil && s.refused == nil {
		return
	}
	if err := c.removeStatement(chain); err != nil {
		c.log.Warn("cannot remove the statement of a chain", "chain", chain, "err", err)
	}
	if s.refused != nil {
		c.sweepTrees() // the chain's tree may be unknown
	} else if c.sharers(s.statement.Tree) == 0 {
		c.remove(s.statement.Tree)
	}
}

// sharers returns the number of chains whose statements name a tree; mu is held.
func (c *Chains) sharers(tree chunk.ID) (n int) {
	for _, s := range c.states {
		if s.statement != nil && s.statement.Tree == tree {
			n++
		}
	}
	return n
}

// remove removes a tree; mu is held, except during the removal. A tree that is in use stays until
// the next Sweep.
func (c *Chains) remove(tree chunk.ID) {
	c.removing[tree] = true
	c.mu.Unlock()
	err := c.trees.Remove(tree)
	c.mu.Lock()
	delete(c.removing, tree)
	c.finished.Broadcast()
	if err != nil {
		c.log.Warn("cannot remove a tree: it stays until the next start", "tree", tree.Short(), "err", err)
	}
}

// Sweep removes chains without holders, and all files and trees that belong to no chain: they were
// left by a crash. It is called after Hold was called for all users that outlived the previous
// daemon, and before the first request.
func (c *Chains) Sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, chain := range slices.Collect(maps.Keys(c.states)) {
		c.release(chain)
	}
	c.sweepFiles()
	c.sweepTrees()
}

// sweepTrees removes the trees that no statement names. It removes none if the tree of a chain is
// unknown. mu is held, except while a tree is removed.
func (c *Chains) sweepTrees() {
	trees, err := c.orphans()
	if err != nil {
		c.log.Warn("cannot list the trees", "err", err)
	}
	for chain, s := range c.states {
		if len(trees) > 0 && c.isTreeUnknown(s) {
			c.log.Warn("unnamed trees stay: a refused statement may have named one of them",
				"chain", chain, "trees", trees)
			return
		}
	}
	for _, tree := range trees {
		if c.sharers(tree) == 0 {
			c.remove(tree)
		}
	}
}

// orphans returns the trees on this machine that no statement names; mu is held.
func (c *Chains) orphans() ([]chunk.ID, error) {
	trees, err := c.trees.List()
	return slices.DeleteFunc(trees, func(tree chunk.ID) bool { return c.removing[tree] || c.sharers(tree) > 0 }), err
}

// Statements lists the readable statements on disk, including refused ones (see Refused).
func (c *Chains) Statements() (all []index.Statement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.states {
		if s.statement != nil {
			all = append(all, *s.statement)
		}
	}
	return all
}

// IsShared reports whether a chain's tree has users besides a number of own holders of the chain.
func (c *Chains) IsShared(chain string, own int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.states[chain]
	return s != nil && (s.holders > own || s.statement != nil && c.sharers(s.statement.Tree) > 1)
}

// Usage returns the bytes and inodes on disk that the next Drop of the chain would free.
func (c *Chains) Usage(chain string) (bytes, inodes int64) {
	c.mu.Lock()
	s := c.states[chain]
	frees := s != nil && s.holders == 1 && s.statement != nil && c.sharers(s.statement.Tree) == 1
	c.mu.Unlock()
	if !frees {
		return 0, 0
	}
	return c.trees.Size(s.statement.Tree)
}
