package resolver

import (
	"cmp"
	"errors"
	"slices"

	"lighter/format/chunk"
	"lighter/format/index"
)

// refusal says why a statement on disk cannot be verified. For example, no key is pinned yet, the
// pinned keys have changed, the disk has damaged the file, or a newer version of the node wrote it.
type refusal struct {
	cause error
	hub   error // why no answerer has given another statement; nil: no answerer was asked yet
}

// Refused is a held chain whose statement on disk is refused. Its tree stays, and is served.
type Refused struct {
	Chain string
	// Trees has the tree that the statement names. If that tree is unknown, it has all trees on
	// this machine that the statement may have named.
	Trees  []chunk.ID
	Cause  error
	Hub    error  // why no answerer has given another statement; nil: no answerer was asked yet
	Remedy string // what the administrator can do
}

// Refused lists the chains whose statements are refused, sorted.
func (c *Chains) Refused() (all []Refused) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for chain, s := range c.states {
		if s.refused == nil {
			continue
		}
		refused := Refused{Chain: chain, Cause: s.refused.cause, Hub: s.refused.hub, Remedy: s.remedy()}
		if c.isTreeUnknown(s) {
			refused.Trees, _ = c.orphans() // the trees that could be listed
		} else {
			refused.Trees = []chunk.ID{s.statement.Tree}
		}
		all = append(all, refused)
	}
	slices.SortFunc(all, func(a, b Refused) int { return cmp.Compare(a.Chain, b.Chain) })
	return all
}

// isTreeUnknown reports whether a refused statement names no tree, or a tree that is not on this
// machine. Then each tree that no other statement names may be the chain's tree. mu is held.
func (c *Chains) isTreeUnknown(s *chainState) bool {
	return s.refused != nil && (s.statement == nil || !c.trees.Has(s.statement.Tree))
}

// remedy says what an administrator can do about a refused statement.
func (s *chainState) remedy() string {
	const again = "make sure that the node reaches a hub: it asks again for the statement; " +
		"if that does not help, remove the image (ctr images rm --sync IMAGE) and pull it again"
	switch {
	case errors.Is(s.refused.hub, errOtherTree):
		return "remove the image (ctr images rm --sync IMAGE) and pull it again: the hub has made another tree of it"
	case s.statement == nil:
		return again
	case s.statement.Format > index.Format:
		return "start a lighter node of the version that pulled the image, or of a newer one"
	}
	return "if the hub's key was changed, pin the old key beside the new one " +
		"(hub_keys, --hub-key, or the file hub.keys) and restart the node; " + again
}

// refusedFor returns why the statement of a chain on disk is refused, or nil.
func (c *Chains) refusedFor(chain string) error {
	if refused := c.stateOf(chain).refused; refused != nil {
		return refused.cause
	}
	return nil
}
