package imagestore

import (
	"context"
	"slices"
	"sync"
)

// turns bounds how many layers are passed to tools at a time, for all users and for each of them. A
// user with few layers goes before a user with many: so a user who does not read what was opened
// keeps others waiting for readerPatience at most.
type turns struct {
	mu      sync.Mutex // guards what follows
	taken   map[uint32]int
	all     int
	waiting []*turn // in the order of their arrival
}

// turn is a layer that waits for its turn.
type turn struct {
	user uint32
	come chan struct{} // closed when it has come
}

// take waits for a turn of a user. The caller calls done when it is over.
func (q *turns) take(ctx context.Context, user uint32) (done func(), err error) {
	t := &turn{user, make(chan struct{})}
	q.mu.Lock()
	q.waiting = append(q.waiting, t)
	q.next()
	q.mu.Unlock()
	done = func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.all--
		if q.taken[user]--; q.taken[user] == 0 {
			delete(q.taken, user)
		}
		q.next()
	}
	select {
	case <-t.come:
		return done, nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	n := slices.Index(q.waiting, t)
	if n >= 0 {
		q.waiting = slices.Delete(q.waiting, n, n+1)
	}
	q.mu.Unlock()
	if n < 0 { // it came meanwhile
		done()
	}
	return nil, context.Cause(ctx)
}

// next gives the free turns to layers that wait. q.mu is held.
func (q *turns) next() {
	for q.all < layers {
		best := -1
		for n, t := range q.waiting {
			mine := q.taken[t.user]
			if (t.user == 0 || mine < userLayers) && (best < 0 || mine < q.taken[q.waiting[best].user]) {
				best = n
			}
		}
		if best < 0 {
			return
		}
		t := q.waiting[best]
		q.waiting = slices.Delete(q.waiting, best, best+1)
		q.all++
		q.taken[t.user]++
		close(t.come)
	}
}
