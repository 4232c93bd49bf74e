package device

import (
	"context"
	"errors"
	"sync"
	"time"

	"lighter/format/index"
)

// pass is what was fetched since the stream began, or went on.
type pass struct {
	packs   []index.Startup
	flights sync.WaitGroup
	room    chan struct{} // one for each unit in flight
	careful bool          // one unit at a time: the last pass has failed

	mu     sync.Mutex // guards failed
	failed error      // the source, or the cache: not to be tried now
}

var errNotKept = errors.New("the cache does not take it")

// fail notes that nothing more is to be asked for.
func (p *pass) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = err
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
