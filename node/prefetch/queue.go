package prefetch

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"lighter/format/chunk"
)

// queue fetches units for devices in turn, so that each gets its share. Package store has a similar
// round robin, its gate. They share no code, because here workers wait for requests, and all
// requests of a device can be dropped at once.
type queue struct {
	log *slog.Logger

	mu      sync.Mutex  // guards what follows, and the requests
	devices []*requests // devices with queued requests; the next turn is that of the first device
	changed *sync.Cond  // a request was added, or a fetch has ended
}

// requests are one device's speculative requests.
type requests struct {
	queue    *queue
	fetcher  Fetcher
	refs     []chunk.Ref // queued, in order
	inFlight int
}

func newQueue(log *slog.Logger) *queue {
	q := &queue{log: log}
	q.changed = sync.NewCond(&q.mu)
	return q
}

func (q *queue) requestsOf(f Fetcher) *requests { return &requests{queue: q, fetcher: f} }

// add queues a request and reports whether there was room for it.
func (r *requests) add(ref chunk.Ref) bool {
	q := r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(r.refs) >= maxQueued {
		return false
	}
	if len(r.refs) == 0 {
		q.devices = append(q.devices, r)
	}
	r.refs = append(r.refs, ref)
	q.changed.Signal()
	return true
}

// queued returns the number of queued requests.
func (r *requests) queued() int {
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	return len(r.refs)
}

// drop removes the queued requests.
func (r *requests) drop() {
	q := r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	r.refs = nil
	q.devices = slices.DeleteFunc(q.devices, func(other *requests) bool { return other == r })
}

// run fetches queued requests until ctx is done.
func (q *queue) run(ctx context.Context) {
	defer context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.changed.Broadcast()
	})()
	var workers sync.WaitGroup
	for range maxFetches {
		workers.Go(func() {
			for {
				r, ref := q.next(ctx)
				if r == nil {
					return
				}
				if err := r.fetcher.Prefetch(ctx, ref); err != nil {
					q.log.Debug("prefetch failed", "chunk", ref.ID.Short(), "err", err)
				}
				r.done()
			}
		})
	}
	workers.Wait()
}

// next waits for the next request to fetch. It returns nil once ctx is done.
func (q *queue) next(ctx context.Context) (*requests, chunk.Ref) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for ctx.Err() == nil {
		for range q.devices {
			r := q.devices[0]
			q.devices = q.devices[1:]
			if r.inFlight >= maxDeviceFetches {
				q.devices = append(q.devices, r)
				continue
			}
			ref := r.refs[0]
			r.inFlight++
			if r.refs = r.refs[1:]; len(r.refs) > 0 {
				q.devices = append(q.devices, r)
			}
			return r, ref
		}
		q.changed.Wait()
	}
	return nil, chunk.Ref{}
}

func (r *requests) done() {
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	r.inFlight--
	r.queue.changed.Signal()
}
