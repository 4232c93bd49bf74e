package mount

import (
	"context"
	"errors"
	"fmt"

	"lighter/durable"
	"lighter/format/chunk"
)

// fetch is the download of one tree's index, shared by all callers that wait for it. It ends when
// the last of them has left.
type fetch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	begun  chan struct{} // closed when what arrives is known to be the tree's index
	done   chan struct{} // closed when err is set
	err    error

	// Trees.mu guards what follows.
	waiters int
	wanted  bool // by a caller that wants the tree here even if it is removed meanwhile
}

var (
	errNoWaiter = errors.New("nobody waits for it")
	errRemoved  = errors.New("the tree was removed meanwhile")
)

// fetch waits for a download of a tree's index, and calls begun when it has begun to arrive. A
// tree that is removed meanwhile is published only if it is wanted all the same.
func (t *Trees) fetch(ctx context.Context, tree chunk.ID, wanted bool, begun func()) error {
	f, err := t.joinFetch(ctx, tree, wanted)
	if err == nil {
		err = f.wait(ctx, begun)
		t.leaveFetch(f)
	}
	if err != nil {
		return fmt.Errorf("fetch index %s: %w", tree.Short(), err)
	}
	return nil
}

// joinFetch joins a tree's download, or begins one. leaveFetch ends that.
func (t *Trees) joinFetch(ctx context.Context, tree chunk.ID, wanted bool) (*fetch, error) {
	for {
		f, joined := t.tryJoin(tree, wanted)
		if joined {
			return f, nil
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// tryJoin joins a tree's download unless it was cancelled and has not ended yet.
func (t *Trees) tryJoin(tree chunk.ID, wanted bool) (f *fetch, joined bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f = t.fetches[tree]
	if f == nil {
		f = &fetch{begun: make(chan struct{}), done: make(chan struct{})}
		f.ctx, f.cancel = context.WithCancelCause(context.Background())
		t.fetches[tree] = f
		go t.run(f, tree, wanted)
	}
	if f.ctx.Err() != nil {
		return f, false
	}
	f.waiters++
	f.wanted = f.wanted || wanted
	return f, true
}

func (t *Trees) leaveFetch(f *fetch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.waiters--; f.waiters == 0 {
		f.cancel(errNoWaiter)
	}
}

// run downloads an index. For a caller that wants the tree here, an index that came since it
// looked will do.
func (t *Trees) run(f *fetch, tree chunk.ID, wanted bool) {
	if !wanted || !t.Has(tree) {
		f.err = t.download(f, tree)
	}
	t.mu.Lock()
	delete(t.fetches, tree)
	t.mu.Unlock()
	close(f.done)
}

// wait waits until the index is here.
func (f *fetch) wait(ctx context.Context, begun func()) error {
	select {
	case <-f.begun:
	case <-f.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-f.begun: // also of a download that is done by now
		begun()
	default:
	}
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// publish gives a fetched index its place. What is there was damaged.
func (t *Trees) publish(f *fetch, tree chunk.ID, fresh string) error {
	unlock, err := t.locks.lockOrCancel(f.ctx, tree)
	if err != nil {
		return err
	}
	defer unlock()
	if err := t.mayPublish(f, t.Has(tree)); err != nil {
		return err
	}
	if err := durable.Discard(t.dir(tree), t.aside(tree)); err != nil {
		return err
	}
	t.forgetLocal(tree)
	return durable.Publish(fresh, t.dir(tree))
}

// mayPublish fails unless a fetched index replaces one that is here, or a caller wants it anyway.
// When it fails, no caller joins this download any more.
func (t *Trees) mayPublish(f *fetch, here bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !here && !f.wanted {
		f.cancel(errRemoved)
		return errRemoved
	}
	return nil
}
