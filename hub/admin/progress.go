package admin

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"lighter/wire"
)

// progress is an answer of JSON objects, one in each line, that are sent at once. Before the first
// line, a request can still end with another status. It is safe for concurrent use.
type progress struct {
	mu      sync.Mutex // guards the following
	w       http.ResponseWriter
	encoder *json.Encoder
	begun   bool
	last    time.Time // when a line was sent
}

func newProgress(w http.ResponseWriter) *progress {
	return &progress{w: w, encoder: json.NewEncoder(w), last: time.Now()}
}

// maxSilence is the longest pause between two lines. Clients and proxies give up after longer ones.
const maxSilence = 5 * time.Second

// keepAlive sends a line whenever there was none for maxSilence, until stop is called.
func (p *progress) keepAlive() (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(maxSilence / 2)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case now := <-tick.C:
				p.mu.Lock()
				silent := now.Sub(p.last) >= maxSilence
				p.mu.Unlock()
				if silent && p.send(wire.Progress{Step: "wait"}) != nil {
					return // the client has gone: the request's context ends
				}
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

func (p *progress) send(line wire.Progress) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.begun {
		p.w.Header().Set("Content-Type", "application/x-ndjson")
		p.w.Header().Set("Cache-Control", "no-store")
		p.begun = true
	}
	p.last = time.Now()
	if err := p.encoder.Encode(line); err != nil {
		return err
	}
	return http.NewResponseController(p.w).Flush()
}

// end sends the last line, with err in it. If nothing was sent yet it returns err instead.
func (p *progress) end(last wire.Progress, err error) error {
	p.mu.Lock()
	begun := p.begun
	p.mu.Unlock()
	if err != nil && !begun && len(last.Images) == 0 {
		return err
	}
	if err != nil {
		last.Error = err.Error()
	}
	_ = p.send(last) // an error means that the client has gone
	return nil
}
