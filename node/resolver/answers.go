package resolver

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// answers remembers the answers of a node's answerers, so that a pull asks only once. Simultaneous
// pulls of the same image share a request.
type answers struct {
	// ask returns the facts of an answer by chain. The error says why the requested chain is not
	// claimed.
	ask      func(q Request) (map[string]*facts, error)
	inFlight singleflight.Group
	others   bool // there are answerers besides hubs

	mu           sync.Mutex // guards what follows
	known        map[factsKey]facts
	repositories int // upper bound of the number of repositories in known

	pausedUntil time.Time // brief pulls go on without a hub until this time
	pauseCause  error     // why they do
}

// factsKey is a key of answers.known. A chain has facts for each image (Request.image) that it was
// looked up with. An empty image stands for a lookup of the chain alone. An empty chain stands for
// the image as a whole.
type factsKey struct{ image, chain string }

func newAnswers(others bool, ask func(q Request) (map[string]*facts, error)) *answers {
	return &answers{ask: ask, others: others, known: map[factsKey]facts{}}
}

// lookup returns the facts about a request's chain. It asks the answerers unless fresh facts are
// remembered. The error says why the chain is not claimed.
func (a *answers) lookup(ctx context.Context, q Request, p patience) (facts, error) {
	for {
		f, answered := a.recall(q, p)
		if f != nil {
			return *f, f.err
		}
		select {
		case <-answered:
		case <-ctx.Done():
			return facts{}, context.Cause(ctx)
		}
	}
}

// recall returns remembered facts. If there are none, it asks the answerers in the background, and
// returns a channel that gets a value when the answer is remembered.
func (a *answers) recall(q Request, p patience) (*facts, <-chan singleflight.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	this := factsKey{q.image(), q.Chain}
	f, below, manifest := a.known[this], a.known[factsKey{q.image(), q.Parent}], a.known[factsKey{q.image(), ""}]
	isPaused := p == brief && now.Before(a.pausedUntil)
	q.withoutHubs = isPaused && a.others
	if q.withoutHubs && f.fromHub { // what the hub knows does not help now
		f, manifest = facts{}, facts{}
	}
	switch {
	case q.Parent != "" && below.err != nil && below.isFresh(now, answerTTL):
		// No layer above an unclaimed layer is claimed. Each further layer of the pull renews the
		// time for which the refusal counts, so that a pull asks once.
		f.at, f.err = now, below.err
		a.known[this] = f
	case f.err == nil && f.isFresh(now, answerTTL):
	case f.err != nil && f.isFresh(now, unknownTTL):
	case isPaused && !a.others:
		f = facts{err: a.pauseCause}
	case q.Parent != "" && below.complete && below.isFresh(now, unknownTTL):
		f = facts{at: now, err: errUnknown}
		a.known[this] = f
	case f.image == nil && (manifest.err != nil && manifest.isFresh(now, unknownTTL) ||
		manifest.err == nil && manifest.isFresh(now, answerTTL)):
		f = facts{at: now, err: manifest.err}
		if f.err == nil {
			f.err = fmt.Errorf("chain %s is not one of image manifest %s", q.Chain, q.Manifest)
		}
		a.known[this] = f
	default:
		// No answer can have been remembered since known was read, because mu is held.
		return nil, a.inFlight.DoChan(fmt.Sprint(cmp.Or(q.image(), q.Chain), q.withoutHubs),
			func() (any, error) { a.askAndRemember(q); return nil, nil })
	}
	return &f, nil
}

func (a *answers) askAndRemember(q Request) {
	answer, err := a.ask(q)
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known)+a.repositories > maxRemembered {
		clear(a.known)
		a.repositories = 0
	}
	for chain, f := range answer {
		a.known[factsKey{q.image(), chain}] = *f
	}
	if err != nil {
		a.known[factsKey{q.image(), q.Chain}] = facts{at: now, err: err}
	}
	if q.Manifest != "" {
		a.known[factsKey{q.image(), ""}] = facts{at: now, err: err}
	}
	if f := answer[q.Chain]; f != nil && f.image != nil {
		a.repositories += len(f.image.Repositories)
	}
}

// remembered returns the facts about a request's chain that are remembered and still count, or
// none.
func (a *answers) remembered(q Request) facts {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.known[factsKey{q.image(), q.Chain}]
	if !f.isFresh(time.Now(), answerTTL) {
		return facts{}
	}
	return f
}

// forget forgets that the answerers did not know a chain or its image, and that they knew all
// chains above the chain below.
func (a *answers) forget(q Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.known, factsKey{q.image(), q.Chain})
	if whole := (factsKey{q.image(), ""}); a.known[whole].err != nil {
		delete(a.known, whole)
	}
	if below, ok := a.known[factsKey{q.image(), q.Parent}]; ok && q.Parent != "" {
		below.complete = false
		a.known[factsKey{q.image(), q.Parent}] = below
	}
}

// refuse remembers that a chain is not claimed, and why.
func (a *answers) refuse(q Request, why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := factsKey{q.image(), q.Chain}
	f := a.known[k]
	f.at, f.err = time.Now(), why
	a.known[k] = f
}

// pause makes brief pulls go on without a hub for hubPause.
func (a *answers) pause(cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pausedUntil, a.pauseCause = time.Now().Add(hubPause), cause
}

// paused returns why brief pulls go on without a hub now, or nil if they do not.
func (a *answers) paused() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Now().Before(a.pausedUntil) {
		return a.pauseCause
	}
	return nil
}
