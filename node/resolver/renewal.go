package resolver

import (
	"context"
	"crypto/ed25519"
	"slices"
	"time"

	"lighter/format/index"
	"lighter/sleep"
)

// Signer is a pinned key, with the number of statements on this machine that it has signed.
type Signer struct {
	Key    string `json:"key"`
	Signed int    `json:"signed"` // number of statements
	// Missing lists the chains whose statements the key has not signed, besides the node's own.
	// These statements would be refused if the key were the only pinned key.
	Missing []string `json:"missing"`
}

// Signers returns the pinned keys with what they have signed.
func (c *Chains) Signers() []Signer {
	all := []Signer{}
	statements := c.Statements()
	for _, key := range c.keys.pinned() {
		s := Signer{Key: index.FormatKey(key), Missing: []string{}}
		for _, statement := range statements {
			switch {
			case statement.SignedBy(key):
				s.Signed++
			case !c.keys.isOwn(&statement):
				s.Missing = append(s.Missing, statement.Chain)
			}
		}
		slices.Sort(s.Missing)
		all = append(all, s)
	}
	return all
}

// RenewStatements asks the answerers again for refused statements, and for statements that a pinned
// key has not signed, until ctx ends. While a hub's key is being replaced, the hub signs with both
// keys. Once each statement on this machine has the new key's signature, the old key need not stay
// pinned. RenewStatements is called after Sweep or HoldAll.
func (r *Resolver) RenewStatements(ctx context.Context) {
	// Jitter spreads nodes that were restarted together.
	backoff := sleep.Backoff{First: time.Second, Most: maxRenewalPause, Jitter: 0.25}
	for round := 1; sleep.For(ctx, backoff.After(round)); round++ {
		for _, chain := range r.toRenew() {
			r.renewStatement(ctx, chain)
		}
	}
}

// toRenew lists the chains whose statements are refused, or lack the signature of a pinned key.
func (c *Chains) toRenew() (chains []string) {
	keys := c.keys.pinned()
	c.mu.Lock()
	defer c.mu.Unlock()
	for chain, s := range c.states {
		lacks := func(key ed25519.PublicKey) bool { return s.statement != nil && !s.statement.SignedBy(key) }
		if s.refused != nil || !c.keys.isOwn(s.statement) && slices.ContainsFunc(keys, lacks) {
			chains = append(chains, chain)
		}
	}
	return chains
}

// renewStatement asks for the statement of one chain, and keeps the answer if it is better than the
// statement on disk (see isBetter).
func (r *Resolver) renewStatement(ctx context.Context, chain string) {
	if ctx.Err() != nil || !r.holdAgain(chain) {
		return
	}
	defer r.Drop(chain)
	if r.refusedFor(chain) != nil && r.verifyAgain(ctx, chain) {
		return
	}
	s, err := r.askTree(ctx, chain)
	if err == nil {
		err = r.keep(s)
	}
	if err != nil && ctx.Err() == nil {
		r.noteRefused(chain, err)
		r.log.Debug("cannot renew a statement", "chain", chain, "err", err)
	}
}

// holdAgain adds a holder to a chain if the chain has one, and reports whether it has.
func (c *Chains) holdAgain(chain string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.states[chain]
	if s == nil || s.holders == 0 {
		return false
	}
	s.holders++
	return true
}

// verifyAgain reports whether the statement on disk can be verified now. Perhaps it was refused
// because no key was pinned, and a key was learned since.
func (c *Chains) verifyAgain(ctx context.Context, chain string) bool {
	keys, err := c.keys.Get(ctx)
	if err != nil {
		return false // askTree fails for the same reason
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state(chain)
	if s.statement == nil || s.statement.Verify(chain, keys) != nil {
		return false
	}
	s.refused = nil
	c.log.Info("verified a statement that was refused", "chain", chain)
	return true
}

// noteRefused stores the reason why a refused statement was not replaced.
func (c *Chains) noteRefused(chain string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if refused := c.state(chain).refused; refused != nil {
		refused.hub = err
	}
}
