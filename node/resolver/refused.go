package resolver

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"lighter/format/chunk"
	"lighter/format/index"
)

// refusal is a statement on disk that cannot be verified: the pinned keys have changed, or
// the disk has changed its bytes, or a newer version of the node has written it.
type refusal struct {
	cause error
	hub   error // why the hub has given no other one; nil: it was not asked yet
}

// Refused is a chain that something on this machine holds and whose statement on disk is
// refused. Its tree stays, and is served.
type Refused struct {
	Chain string
	Trees []chunk.ID // on this machine: the one that it names, or, where that is not known, all that it may have named
	Cause error
	Hub   error  // why the hub has given no other statement; nil: it was not asked yet
	Mend  string // what to do
}

// Refused lists the chains whose statements are refused, sorted.
func (r *Resolver) Refused() (all []Refused) {
	r.held.Lock()
	defer r.held.Unlock()
	for chain, u := range r.uses {
		if u.refused == nil {
			continue
		}
		refused := Refused{Chain: chain, Cause: u.refused.cause, Hub: u.refused.hub, Mend: u.mend()}
		if r.isUnknown(u) {
			refused.Trees, _ = r.orphans() // as many as can be listed
		} else {
			refused.Trees = []chunk.ID{u.statement.Tree}
		}
		all = append(all, refused)
	}
	slices.SortFunc(all, func(a, b Refused) int { return cmp.Compare(a.Chain, b.Chain) })
	return all
}

// isUnknown tells whether nobody knows which tree on this machine is the chain's: its
// statement names none, or one that is not there; held is held.
func (r *Resolver) isUnknown(u *use) bool {
	return u.refused != nil && (u.statement == nil || !r.trees.Has(u.statement.Tree))
}

// mend says what to do about a refused statement, in a sentence for people.
func (u *use) mend() string {
	const again = "a hub that can be reached gives it again; else remove the image (ctr images rm --sync IMAGE) and pull it again"
	switch {
	case errors.Is(u.refused.hub, errOtherTree):
		return "remove the image (ctr images rm --sync IMAGE) and pull it again: the hub has made another tree of it"
	case u.statement == nil:
		return again
	case u.statement.Format > index.Format:
		return "start a lighter node of the version that has pulled the image, or of a newer one"
	}
	return "if the hub's key was changed, put the former key back beside the new one (hub_keys, --hub-key, or the file hub.keys) and restart the node; " + again
}

// refusedFor returns why the statement of a chain on disk is refused, or nil.
func (r *Resolver) refusedFor(chain string) error {
	r.held.Lock()
	defer r.held.Unlock()
	if u := r.uses[chain]; u != nil && u.refused != nil {
		return u.refused.cause
	}
	return nil
}

// fetchRefused asks the hub for a statement that is refused.
func (r *Resolver) fetchRefused(ctx context.Context, chain string) {
	if ctx.Err() != nil || !r.holdRefused(chain) {
		return
	}
	defer r.Drop(chain)
	if r.verifyAgain(ctx, chain) {
		return
	}
	s, err := r.askTree(ctx, chain)
	if err == nil {
		err = r.keep(s)
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	r.held.Lock()
	defer r.held.Unlock()
	if refused := r.use(chain).refused; refused != nil {
		refused.hub = err
	}
}

// holdRefused holds a chain if its statement is refused still, and something else holds it.
func (r *Resolver) holdRefused(chain string) bool {
	r.held.Lock()
	defer r.held.Unlock()
	u := r.uses[chain]
	if u == nil || u.refused == nil || u.holders == 0 {
		return false
	}
	u.holders++
	return true
}

// verifyAgain tells whether the statement on disk can be verified by now: no key may have
// been pinned when it was refused, and one learned since.
func (r *Resolver) verifyAgain(ctx context.Context, chain string) bool {
	keys, err := r.keys.Get(ctx)
	if err != nil {
		return false // askTree will fail with the same
	}
	r.held.Lock()
	defer r.held.Unlock()
	u := r.use(chain)
	if u.statement == nil || u.statement.Verify(chain, keys) != nil {
		return false
	}
	u.refused = nil
	r.log.Info("a statement that was refused can be verified now", "chain", chain)
	return true
}
