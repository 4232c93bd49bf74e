package resolver

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"lighter/format/index"
)

const (
	// firstRenewal is the pause before the first round of renewing statements. It
	// doubles up to lastRenewal: hubs that sign with different keys never give all.
	firstRenewal = time.Second
	lastRenewal  = time.Hour
)

// Signer is a pinned key, with what it has signed of the statements on this machine.
type Signer struct {
	Key    string `json:"key"`
	Signed int    `json:"signed"` // statements
	// Missing are the chains whose statements the key has not signed. If it were the only
	// pinned key, they would be refused.
	Missing []string `json:"missing"`
}

// Signers says of each pinned key which statements on this machine it has signed.
func (r *Resolver) Signers() []Signer {
	all := []Signer{}
	statements := r.Statements()
	for _, key := range r.keys.pinned() {
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

// RenewStatements asks the hub again for statements that are refused, and for those that
// a pinned key has not signed, until ctx ends. While a hub's key is replaced, it gives
// them with the signature of the new key, so the old one need not stay pinned. It is
// called after Sweep.
func (r *Resolver) RenewStatements(ctx context.Context) {
	// Nodes that were restarted together do not ask together.
	for pause := firstRenewal; sleep(ctx, pause+rand.N(pause/4)); pause = min(2*pause, lastRenewal) {
		for _, refused := range r.Refused() {
			r.fetchRefused(ctx, refused.Chain)
		}
		for _, s := range r.Statements() {
			if r.refusedFor(s.Chain) == nil && lacks(&s, r.keys.pinned()) && ctx.Err() == nil {
				r.renewStatement(ctx, &s)
			}
		}
	}
}

// lacks reports whether one of the keys has not signed a statement.
func lacks(s *index.Statement, keys []ed25519.PublicKey) bool {
	return slices.ContainsFunc(keys, func(key ed25519.PublicKey) bool { return !s.SignedBy(key) })
}

// renewStatement asks for one statement, and keeps the answer if a pinned key has signed
// it that has not signed the one that is here.
func (r *Resolver) renewStatement(ctx context.Context, old *index.Statement) {
	s, err := r.askTree(ctx, old.Chain)
	if err == nil && s.Tree != old.Tree {
		err = fmt.Errorf("the hub says that it is tree %s now, not %s", s.Tree.Short(), old.Tree.Short())
	}
	if err == nil {
		adds := func(key ed25519.PublicKey) bool { return s.SignedBy(key) && !old.SignedBy(key) }
		if !slices.ContainsFunc(r.keys.pinned(), adds) {
			return
		}
		err = r.replaceStatement(s)
	}
	if err != nil {
		r.log.Debug("a statement is not renewed", "chain", old.Chain, "cause", err)
	}
}

// replaceStatement puts a statement in the place of one that says the same, if that is
// still here and something holds its chain.
func (r *Resolver) replaceStatement(s *index.Statement) error {
	r.held.Lock()
	defer r.held.Unlock()
	u := r.uses[s.Chain]
	if u == nil || u.holders == 0 || u.statement == nil || u.statement.Tree != s.Tree || r.writing[s.Chain] {
		return nil
	}
	u.holders++
	err := r.write(s)
	u.holders--
	r.release(s.Chain)
	return err
}
