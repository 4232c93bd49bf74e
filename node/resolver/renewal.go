package resolver

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"math/rand/v2"
	"slices"

	"lighter/format/index"
)

// Signer is a pinned key, with the statements on this machine that it has signed.
type Signer struct {
	Key    string `json:"key"`
	Signed int    `json:"signed"` // statements
	// Missing lists the chains whose statements the key has not signed. If it were the only pinned
	// key, they would be refused.
	Missing []string `json:"missing"`
}

// Signers returns each pinned key with the statements that it has signed.
func (c *Chains) Signers() []Signer {
	all := []Signer{}
	statements := c.Statements()
	for _, key := range c.keys.pinned() {
		s := Signer{Key: index.FormatKey(key), Missing: []string{}}
		for _, statement := range statements {
			if statement.SignedBy(key) {
				s.Signed++
				continue
			}
			s.Missing = append(s.Missing, statement.Chain)
		}
		slices.Sort(s.Missing)
		all = append(all, s)
	}
	return all
}

// RenewStatements asks again for refused statements, and for statements that a pinned key has not
// signed, until ctx ends. While a hub's key is replaced, the hub signs with both keys: once each
// statement has the new key's signature, the old key need not stay pinned. It is called after
// Sweep.
func (r *Resolver) RenewStatements(ctx context.Context) {
	// Jitter spreads nodes that were restarted together.
	for pause := firstRenewal; sleep(ctx, pause+rand.N(pause/4)); pause = min(2*pause, lastRenewal) {
		for _, refused := range r.Refused() {
			r.replaceRefused(ctx, refused.Chain)
		}
		for _, s := range r.Statements() {
			if ctx.Err() == nil && r.refusedFor(s.Chain) == nil && lacksSignature(&s, r.keys.pinned()) {
				r.renewStatement(ctx, &s)
			}
		}
	}
}

// lacksSignature reports whether one of the keys has not signed a statement.
func lacksSignature(s *index.Statement, keys []ed25519.PublicKey) bool {
	return slices.ContainsFunc(keys, func(key ed25519.PublicKey) bool { return !s.SignedBy(key) })
}

// renewStatement asks for one statement, and keeps the answer if it has the signature of a pinned
// key that the old one lacks.
func (r *Resolver) renewStatement(ctx context.Context, old *index.Statement) {
	s, err := r.askTree(ctx, old.Chain)
	if err == nil && s.Tree != old.Tree {
		err = fmt.Errorf("the hub names tree %s now, not %s", s.Tree.Short(), old.Tree.Short())
	}
	if err == nil {
		adds := func(key ed25519.PublicKey) bool { return s.SignedBy(key) && !old.SignedBy(key) }
		if !slices.ContainsFunc(r.keys.pinned(), adds) {
			return
		}
		err = r.replaceSigned(s)
	}
	if err != nil {
		r.log.Debug("cannot renew a statement", "chain", old.Chain, "err", err)
	}
}

// replaceSigned replaces a statement with one about the same tree, if the chain is still held.
func (c *Chains) replaceSigned(s *index.Statement) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := c.states[s.Chain]
	if state == nil || state.holders == 0 || c.writing[s.Chain] {
		return nil
	}
	if state.statement == nil || state.statement.Tree != s.Tree {
		return nil
	}
	state.holders++
	err := c.write(s)
	state.holders--
	c.release(s.Chain)
	return err
}
