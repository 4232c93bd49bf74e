package uploads

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"lighter/sleep"
)

// places bounds the uploads that are split at a time.
type places struct {
	free *semaphore.Weighted

	mu    sync.Mutex // guards taken
	taken map[*upload]bool
}

func newPlaces(n int64) *places {
	return &places{free: semaphore.NewWeighted(n), taken: map[*upload]bool{}}
}

// take waits for a place. Meanwhile it drops uploads that have places and get no requests: their
// clients may have gone, or go on at another process of the hub. The caller calls leave.
func (p *places) take(ctx context.Context, u *upload) error {
	waiting, end := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		for sleep.For(waiting, stallTime/5) {
			p.dropStalled()
		}
	})
	err := p.free.Acquire(ctx, 1)
	end()
	watch.Wait()
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[u] = true
	return nil
}

func (p *places) leave(u *upload) {
	p.mu.Lock()
	delete(p.taken, u)
	p.mu.Unlock()
	p.free.Release(1)
}

func (p *places) dropStalled() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for u := range p.taken {
		if u.isStalled() {
			u.drop(errStalled)
		}
	}
}
