package mount

import (
	"context"
	"sync"

	"lighter/format/chunk"
)

// locks are locks of single trees, by tree ID. A lock exists only while it is held or waited for.
type locks struct {
	mu  sync.Mutex // guards what follows
	all map[chunk.ID]*treeLock
}

type treeLock struct {
	held  chan struct{} // full while somebody holds the lock
	users int           // holder and waiters; guarded by locks.mu
}

func newLocks() locks { return locks{all: map[chunk.ID]*treeLock{}} }

// join counts one more user of a tree's lock; leave one less.
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

// lock waits for a tree's lock.
func (l *locks) lock(tree chunk.ID) (unlock func()) {
	one := l.join(tree)
	one.held <- struct{}{}
	return func() { l.unlock(tree, one) }
}

// lockOrCancel waits for a tree's lock until ctx is done.
func (l *locks) lockOrCancel(ctx context.Context, tree chunk.ID) (unlock func(), err error) {
	one := l.join(tree)
	select {
	case one.held <- struct{}{}:
		return func() { l.unlock(tree, one) }, nil
	case <-ctx.Done():
		l.leave(tree, one)
		return nil, context.Cause(ctx)
	}
}

// tryLock takes a tree's lock if it is free.
func (l *locks) tryLock(tree chunk.ID) (unlock func(), ok bool) {
	one := l.join(tree)
	select {
	case one.held <- struct{}{}:
		return func() { l.unlock(tree, one) }, true
	default:
		l.leave(tree, one)
		return nil, false
	}
}
