package trees

import (
	"context"
	"sync"

	"lighter/format/chunk"
)

// locks has one lock for each tree. A lock exists only while it is held or waited for.
type locks struct {
	mu  sync.Mutex // guards what follows
	all map[chunk.ID]*treeLock
}

type treeLock struct {
	held  chan struct{} // has one slot, full while the lock is held
	users int           // holder and waiters; guarded by locks.mu
}

func newLocks() locks { return locks{all: map[chunk.ID]*treeLock{}} }

// join adds a user of a tree's lock; leave removes one.
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

// Lock waits for a tree's lock.
func (l *locks) Lock(tree chunk.ID) (unlock func()) {
	unlock, _ = l.LockContext(context.Background(), tree) // no error: the context never ends
	return unlock
}

// LockContext waits for a tree's lock until ctx is done.
func (l *locks) LockContext(ctx context.Context, tree chunk.ID) (unlock func(), err error) {
	one := l.join(tree)
	select {
	case one.held <- struct{}{}:
		return func() { l.unlock(tree, one) }, nil
	case <-ctx.Done():
		l.leave(tree, one)
		return nil, context.Cause(ctx)
	}
}

// TryLock takes a tree's lock if it is free.
func (l *locks) TryLock(tree chunk.ID) (unlock func(), ok bool) {
	one := l.join(tree)
	select {
	case one.held <- struct{}{}:
		return func() { l.unlock(tree, one) }, true
	default:
		l.leave(tree, one)
		return nil, false
	}
}
