package resolver

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// memory remembers the answers of a node's answerers, so that a pull asks one question. Pulls of
// the same image at the same time share the question.
type memory struct {
	// ask returns the facts of an answer by chain, or why the requested chain is not claimed.
	ask       func(q Request) (map[string]*facts, error)
	questions singleflight.Group

	mu           sync.Mutex // guards what follows
	known        map[memoryKey]facts
	repositories int // in known, at most

	pausedUntil time.Time
	pauseCause  error
}

// memoryKey names facts. The same chain may have other facts as part of another manifest's image.
// Without a manifest, the facts are those of the chain alone. Without a chain, they are about the
// manifest.
type memoryKey struct{ manifest, chain string }

func newMemory(ask func(q Request) (map[string]*facts, error)) *memory {
	return &memory{ask: ask, known: map[memoryKey]facts{}}
}

// lookup returns the facts about a request's chain, from memory if they are fresh. The error says
// why the chain is not claimed.
func (m *memory) lookup(ctx context.Context, q Request, p patience) (facts, error) {
	for {
		f, answered := m.recall(q, p)
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

// recall returns remembered facts. If there are none, it asks, and returns a channel that signals
// the answer.
func (m *memory) recall(q Request, p patience) (*facts, <-chan singleflight.Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	this := memoryKey{q.Manifest, q.Chain}
	f, below, manifest := m.known[this], m.known[memoryKey{q.Manifest, q.Parent}], m.known[memoryKey{q.Manifest, ""}]
	switch {
	case q.Parent != "" && below.err != nil && below.isFresh(now, answerTTL):
		// No layer above an unclaimed one is claimed. A refusal of the layer below counts for
		// answerTTL, and each layer renews it, so that a pull asks once.
		f.at, f.err = now, below.err
		m.known[this] = f
	case f.err == nil && f.isFresh(now, answerTTL):
	case f.err != nil && f.isFresh(now, unknownTTL):
	case p == brief && now.Before(m.pausedUntil):
		f = facts{err: m.pauseCause}
	case q.Parent != "" && below.complete && below.isFresh(now, unknownTTL):
		f = facts{at: now, err: errUnknown}
		m.known[this] = f
	case f.image == nil && (manifest.err != nil && manifest.isFresh(now, unknownTTL) ||
		manifest.err == nil && manifest.isFresh(now, answerTTL)):
		f = facts{at: now, err: manifest.err}
		if f.err == nil {
			f.err = fmt.Errorf("chain %s is not one of image manifest %s", q.Chain, q.Manifest)
		}
		m.known[this] = f
	default:
		// mu is held: if an answer had come since known was read, it would be in known.
		return nil, m.questions.DoChan(cmp.Or(q.Manifest, q.Chain), func() (any, error) { m.learn(q); return nil, nil })
	}
	return &f, nil
}

// learn asks and remembers the answer.
func (m *memory) learn(q Request) {
	answer, err := m.ask(q)
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.known)+m.repositories > maxRemembered {
		clear(m.known)
		m.repositories = 0
	}
	for chain, f := range answer {
		m.known[memoryKey{q.Manifest, chain}] = *f
	}
	if err != nil {
		m.known[memoryKey{q.Manifest, q.Chain}] = facts{at: now, err: err}
	}
	if q.Manifest != "" {
		m.known[memoryKey{q.Manifest, ""}] = facts{at: now, err: err}
	}
	if f := answer[q.Chain]; f != nil && f.image != nil {
		m.repositories += len(f.image.Repositories)
	}
}

// refuse remembers why a chain is not claimed.
func (m *memory) refuse(q Request, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := memoryKey{q.Manifest, q.Chain}
	f := m.known[k]
	f.at, f.err = time.Now(), why
	m.known[k] = f
}

// pause makes pulls go on without a hub for a while.
func (m *memory) pause(cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pausedUntil, m.pauseCause = time.Now().Add(hubPause), cause
}

// paused returns why brief pulls go on without a hub now, or nil.
func (m *memory) paused() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Now().Before(m.pausedUntil) {
		return m.pauseCause
	}
	return nil
}
