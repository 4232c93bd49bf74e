package device

import (
	"context"
	"errors"
	"sync"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
)

// streamLies is how many units in a row may not be what they should, or not be there,
// before a startup pack is given up.
const streamLies = 8

// pass is what was fetched since the stream began, or went on.
type pass struct {
	packs   []index.Startup
	flights sync.WaitGroup
	room    chan struct{} // one for each unit in flight
	careful bool          // one unit at a time: the last pass has failed

	mu     sync.Mutex // guards what follows
	failed error      // the source, or the cache: not to be tried now
	lies   int        // in a row, of one pack
}

var errNotKept = errors.New("the cache does not take it")

// learn notes how a unit came.
func (p *pass) learn(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.lies = 0
	case errors.Is(err, chunk.ErrNotFound) || errors.As(err, new(*chunk.InvalidError)):
		p.lies++
	default:
		p.failed = err
	}
}

// begin begins with another pack.
func (p *pass) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lies = 0
}

// isOver tells whether nothing more of a pack is to be asked for.
func (p *pass) isOver() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed != nil || p.lies >= streamLies
}

// why says why nothing more is to be asked for at all.
func (p *pass) why() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// reset ends the pass, and says why if it did not come to its end.
func (p *pass) reset() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.failed
	p.failed, p.careful = nil, err != nil
	if err == nil {
		p.packs = nil
	}
	return err
}

// wait tells whether so much time has gone by before ctx was done.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
