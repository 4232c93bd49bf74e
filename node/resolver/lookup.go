package resolver

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"

	"lighter/wire"
)

const (
	// lookupTimeout is how long a pull waits for a hub's answer at most. It waits so
	// long only for a hub of which something comes; for a silent one, one or two seconds.
	lookupTimeout = 20 * time.Second
	// pause is how long pulls go on without a hub of which an index did not come.
	pause = 10 * time.Second
	// memory is how long an answer counts, and negativeMemory how long a "not
	// known" does: an image that was just added shall be lazy soon.
	memory         = time.Minute
	negativeMemory = 5 * time.Second
	// maxRemembered bounds the chains that are remembered.
	maxRemembered = 20000
)

// link is what a hub said of a chain.
type link struct {
	at  time.Time // when
	err error     // why the chain is not ours; nil: it is
	// complete: all chains above this one are remembered too.
	complete bool
	own      *index.Statement // verified; nil: no image ends here
	images   int              // that end above, with a verified statement
	above    *index.Statement // of one of them
	refused  error            // what is wrong with a statement here or above
}

var errUnknown = errors.New("the hub does not know it")

// nothing says why a chain that the hub knows is not claimed.
func (l *link) nothing() error {
	if l.refused != nil {
		return l.refused
	}
	return errors.New("the hub knows no image that it is part of")
}

// lookup says what the hub knows of a chain, from memory if that will do.
// committed says that the parent was claimed.
func (r *Resolver) lookup(ctx context.Context, chain, parent string, committed bool) (link, error) {
	for {
		l, answered := r.recall(chain, parent, committed)
		if l != nil {
			return *l, l.err
		}
		select {
		case <-answered:
		case <-ctx.Done():
			return link{}, context.Cause(ctx)
		}
	}
}

// recall returns what is remembered, or tells when an answer will be there.
func (r *Resolver) recall(chain, parent string, committed bool) (*link, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	silent := now.Before(r.silentTo)
	l, below := r.links[chain], r.links[parent]
	switch {
	// On what is not ours nothing is. That counts for longer than "not known"
	// does otherwise, and anew with each layer: who asked once in a pull does
	// not ask again.
	case below.err != nil && below.fresh(now, memory):
		l = link{at: now, err: below.err}
		r.links[chain] = l
	case l.err == nil && l.fresh(now, memory) && (committed || !silent):
	case l.err != nil && l.fresh(now, negativeMemory):
	case silent:
		l = link{err: r.silence}
	case below.complete && below.fresh(now, negativeMemory):
		l = link{at: now, err: errUnknown}
		r.links[chain] = l
	default:
		return nil, r.answered(chain)
	}
	return &l, nil
}

func (l *link) fresh(now time.Time, memory time.Duration) bool { return now.Before(l.at.Add(memory)) }

// answered returns when more will be known of a chain, and asks if nobody does;
// mu is held.
func (r *Resolver) answered(chain string) <-chan struct{} {
	answered := r.asking[chain]
	if answered == nil {
		answered = make(chan struct{})
		r.asking[chain] = answered
		go r.ask(chain, answered)
	}
	return answered
}

// remember says of a chain that it is not ours, and why.
func (r *Resolver) remember(chain string, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.links[chain] = link{at: time.Now(), err: why}
}

// ask asks the hub about a chain, for all who wait for the answer.
func (r *Resolver) ask(chain string, answered chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	var links map[string]*link
	err := insist(ctx, lookupTimeout, func() (err error) {
		links, err = r.answer(ctx, chain)
		return err
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.links) > maxRemembered {
		clear(r.links)
	}
	switch {
	case errors.Is(err, chunk.ErrNotFound):
		r.links[chain] = link{at: time.Now(), err: errUnknown}
	case err != nil:
		err = fmt.Errorf("the hub did not answer: %w", err)
		r.unanswered.Add(1)
		r.links[chain] = link{at: time.Now(), err: err} // the hub itself rests as long as store/hub finds right
		r.log.Warn("a look-up has no answer", "chain", chain, "cause", err)
	default:
		for c, l := range links {
			r.links[c] = *l
		}
		if refused := links[chain].refused; refused != nil {
			r.log.Warn("a statement of the hub is refused", "chain", chain, "cause", refused)
		}
	}
	delete(r.asking, chain)
	close(answered)
}

// fail has pulls go on without a hub for a while, as an index did not come.
func (r *Resolver) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silentTo, r.silence = time.Now().Add(pause), err
	r.unanswered.Add(1)
	r.log.Warn("pulls go on without the hub for a while", "pause", pause, "cause", err)
}

// Unanswered is how often pulls went on without the hub since the node started,
// because a look-up had no answer or an index did not come.
func (r *Resolver) Unanswered() int64 { return r.unanswered.Load() }

// answer asks the hub and verifies each statement in its answer.
func (r *Resolver) answer(ctx context.Context, chain string) (map[string]*link, error) {
	answer, err := r.hub.Chain(ctx, chain)
	if err != nil {
		return nil, err
	}
	keys, err := r.keys.Get(ctx)
	if err != nil {
		return nil, err
	}
	if answer.Chain != chain {
		return nil, fmt.Errorf("it answers about chain %q", answer.Chain)
	}
	if len(answer.Above) > wire.MaxAbove {
		answer.Above, answer.Complete = answer.Above[:wire.MaxAbove], false
	}
	links := map[string]*link{}
	now := time.Now()
	at := func(chain string) *link {
		if links[chain] == nil {
			links[chain] = &link{at: now, complete: answer.Complete}
		}
		return links[chain]
	}
	// The nearest come first: from behind, what is above each is known.
	for _, l := range append([]wire.Link{answer.Link}, answer.Above...) {
		at(l.Chain)
	}
	for i := len(answer.Above) - 1; i >= 0; i-- {
		above := answer.Above[i]
		l := at(above.Chain)
		l.verify(&above, keys)
		if below := links[above.Parent]; below != nil {
			below.stand(l)
		}
	}
	at(chain).verify(&answer.Link, keys)
	return links, nil
}

// verify takes the statement about the chain itself, if there is one.
func (l *link) verify(said *wire.Link, keys []ed25519.PublicKey) {
	if said.Statement == nil {
		return
	}
	if err := said.Statement.Verify(said.Chain, keys); err != nil {
		l.refused = fmt.Errorf("refused: %w", err)
		return
	}
	l.own = said.Statement
}

// stand says what stands on the chain.
func (l *link) stand(above *link) {
	l.images += above.images
	if above.above != nil {
		l.above = above.above
	}
	if above.own != nil {
		l.images++
		l.above = above.own
	}
	if l.refused == nil {
		l.refused = above.refused
	}
}
