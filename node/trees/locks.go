package trees

import (
	"context"
	"sync"

	"lighter/format/chunk"
)

// locks has one lock for each tree.
type locks struct {
	mu   sync.Mutex                 // guards held
	held map[chunk.ID]chan struct{} // by tree: closed when the tree's lock is released
}

func newLocks() locks { return locks{held: map[chunk.ID]chan struct{}{}} }

// try takes a tree's lock if it is free. Otherwise it returns a channel that is closed when the
// lock is released.
func (l *locks) try(tree chunk.ID) (unlock func(), released <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if held := l.held[tree]; held != nil {
		return nil, held
	}
	held := make(chan struct{})
	l.held[tree] = held
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, tree)
		close(held)
	}, nil
}

// Lock waits for a tree's lock.
func (l *locks) Lock(tree chunk.ID) (unlock func()) {
	unlock, _ = l.LockContext(context.Background(), tree) // no error: the context never ends
	return unlock
}

// LockContext waits for a tree's lock until ctx is done.
func (l *locks) LockContext(ctx context.Context, tree chunk.ID) (unlock func(), err error) {
	for {
		unlock, released := l.try(tree)
		if unlock != nil {
			return unlock, nil
		}
		select {
		case <-released:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// TryLock takes a tree's lock if it is free.
func (l *locks) TryLock(tree chunk.ID) (unlock func(), ok bool) {
	unlock, _ = l.try(tree)
	return unlock, unlock != nil
}
