package mount

import (
	"context"
	"sync"

	"lighter/format/chunk"
)

// locks are the locks of trees, by tree ID. A lock exists only while it is held or waited for.
// No lock is held while an index is fetched.
type locks struct {
	mu  sync.Mutex // guards what follows
	all map[chunk.ID]*treeLock
}

type treeLock struct {
	held  chan struct{} // full while somebody holds the lock
	users int           // holder and waiters; guarded by locks.mu
}

// join returns a tree's lock to hold or wait for; leave ends that.
func (l *locks) join(tree chunk.ID) *treeLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.all[tree]
	if one == nil {
		one = &treeLock{held: make(chan struct{}, 1)}
		l.all[tree] = one
	}
	one.users++
	return one
}

func (l *locks) leave(tree chunk.ID, one *treeLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one.users--; one.users == 0 {
		delete(l.all, tree)
	}
}

func (l *locks) unlock(tree chunk.ID, one *treeLock) {
	<-one.held
	l.leave(tree, one)
}

// lockOrCancel waits for a tree's lock until ctx is done.
func (t *Trees) lockOrCancel(ctx context.Context, tree chunk.ID) (unlock func(), err error) {
	one := t.locks.join(tree)
	select {
	case one.held <- struct{}{}:
		return func() { t.locks.unlock(tree, one) }, nil
	case <-ctx.Done():
		t.locks.leave(tree, one)
		return nil, context.Cause(ctx)
	}
}

// lock waits for a tree's lock.
func (t *Trees) lock(tree chunk.ID) (unlock func()) {
	one := t.locks.join(tree)
	one.held <- struct{}{}
	return func() { t.locks.unlock(tree, one) }
}

// tryLock takes a tree's lock if it is free.
func (t *Trees) tryLock(tree chunk.ID) (unlock func(), ok bool) {
	one := t.locks.join(tree)
	select {
	case one.held <- struct{}{}:
		return func() { t.locks.unlock(tree, one) }, true
	default:
		t.locks.leave(tree, one)
		return nil, false
	}
}
