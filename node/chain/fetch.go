package chain

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"lighter/format/index"
)

const (
	// beginTimeout is how long a pull that can still go on without a hub waits
	// for the beginning of the index, some 100 KB.
	beginTimeout = 2 * time.Second
	// fetchTimeout is what everything else has in all. When nothing arrives,
	// Ensure gives up long before.
	fetchTimeout = 5 * time.Minute
	// maxFetches bounds the indexes that arrive at once: each takes several
	// megabytes to decompress, and few of them fill the link.
	maxFetches = 4
)

// fetch is a tree on its way here, for all who wait for it.
type fetch struct {
	begun chan struct{} // closed when the index is arriving
	done  chan struct{} // closed when err is set
	err   error
}

// fetch starts to bring a chain's tree here, or joins who did. begin is how long
// the hub may take until the index is arriving; who joins lives with that of the
// first. It holds the chain while it lasts, and the tree stays for a while after
// that even if nobody holds it: the pull that it is for claims the chain last.
func (r *Resolver) fetch(s *index.Statement, begin time.Duration) *fetch {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.fetches[s.Tree]; f != nil {
		return f
	}
	f := &fetch{begun: make(chan struct{}), done: make(chan struct{})}
	r.fetches[s.Tree] = f
	go r.run(f, s, begin)
	return f
}

// ensure keeps a statement and waits for its tree.
func (r *Resolver) ensure(ctx context.Context, s *index.Statement, begin time.Duration) error {
	if err := r.keep(s); err != nil {
		return err
	}
	return r.fetch(s, begin).wait(ctx)
}

func (r *Resolver) run(f *fetch, s *index.Statement, begin time.Duration) {
	r.Hold(s.Chain)
	// The time that the hub has begins when it is this fetch's turn.
	r.turns <- struct{}{}
	err := r.keep(s)
	silence := r.silenceFor(begin)
	if err == nil && silence == nil {
		err = r.bring(f, s, begin)
	}
	<-r.turns
	r.dropLater(s.Chain) // who waits has a hold
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.fail(err)
	}
	f.err = cmp.Or(err, silence)
	delete(r.fetches, s.Tree)
	close(f.done)
}

// silenceFor says why a pull that can go on without a hub need not ask it now: it
// has failed others whose turn came before.
func (r *Resolver) silenceFor(begin time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if begin == beginTimeout && time.Now().Before(r.silentTo) {
		return r.silence
	}
	return nil
}

func (r *Resolver) bring(f *fetch, s *index.Statement, begin time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	timer := time.AfterFunc(begin, func() { giveUp(fmt.Errorf("its index did not come within %s", begin)) })
	defer timer.Stop()
	begun := sync.OnceFunc(func() {
		timer.Stop()
		close(f.begun)
	})
	return r.trees.Ensure(ctx, s.Tree, begun)
}

// wait waits until the tree is here.
func (f *fetch) wait(ctx context.Context) error {
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// waitBegun waits until the tree is coming, or here.
func (f *fetch) waitBegun(ctx context.Context) error {
	select {
	case <-f.begun:
	case <-f.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-f.done: // the beginning may have been all
		return f.err
	default:
		return nil
	}
}
