package device

import (
	"context"
	"log/slog"
	"sync"

	"lighter/format/chunk"
)

const (
	// aheadQueue bounds the units that reading ahead has asked for and that
	// are not on their way yet; beyond it reading ahead does less, and nobody
	// waits.
	aheadQueue = 1024
	// aheadWorkers is how many of them are fetched at a time.
	aheadWorkers = 32
)

// Ahead fetches what the devices of a node ask for ahead of their readers.
type Ahead struct {
	chunks Chunks
	queue  chan chunk.Ref
	log    *slog.Logger
}

// NewAhead fetches from chunks, once Run is called.
func NewAhead(chunks Chunks, log *slog.Logger) *Ahead {
	return &Ahead{chunks: chunks, queue: make(chan chunk.Ref, aheadQueue), log: log}
}

// ask tells whether there was room for one more.
func (a *Ahead) ask(ref chunk.Ref) bool {
	select {
	case a.queue <- ref:
		return true
	default:
		return false
	}
}

// Run fetches until ctx is done.
func (a *Ahead) Run(ctx context.Context) {
	var workers sync.WaitGroup
	for range aheadWorkers {
		workers.Go(func() {
			for {
				select {
				case ref := <-a.queue:
					if err := a.chunks.Warm(ctx, ref); err != nil {
						a.log.Debug("read ahead", "chunk", ref.ID.Short(), "cause", err)
					}
				case <-ctx.Done():
					return
				}
			}
		})
	}
	workers.Wait()
}
