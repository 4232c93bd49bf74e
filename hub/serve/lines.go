package serve

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"lighter/wire"
)

// lines is an answer of JSON objects, a line each, that are on their way as soon
// as they are written. It begins with the first of them: until then a request
// can still end with a status of its own.
type lines struct {
	mu      sync.Mutex // guards all
	w       http.ResponseWriter
	encoder *json.Encoder
	begun   bool
	last    time.Time // when a line was sent
}

func newLines(w http.ResponseWriter) *lines {
	return &lines{w: w, encoder: json.NewEncoder(w), last: time.Now()}
}

// silence is how long an answer may be silent: clients and proxies give up on
// those that are so for longer.
const silence = 5 * time.Second

// keepAlive sends a line when there has been none for a while, until the
// function that it returns is called.
func (l *lines) keepAlive() (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(silence / 2)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case now := <-tick.C:
				l.mu.Lock()
				silent := now.Sub(l.last) >= silence
				l.mu.Unlock()
				if silent && l.send(wire.Progress{Step: "wait"}) != nil {
					return // the client is gone, as the request's context says
				}
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

func (l *lines) send(p wire.Progress) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun {
		l.w.Header().Set("Content-Type", "application/x-ndjson")
		l.w.Header().Set("Cache-Control", "no-store")
		l.begun = true
	}
	l.last = time.Now()
	if err := l.encoder.Encode(p); err != nil {
		return err
	}
	return http.NewResponseController(l.w).Flush()
}

// end sends the last line. What went wrong before the first line is returned.
func (l *lines) end(last wire.Progress, err error) error {
	l.mu.Lock()
	begun := l.begun
	l.mu.Unlock()
	if err != nil && !begun && len(last.Images) == 0 {
		return err
	}
	if err != nil {
		last.Error = err.Error()
	}
	_ = l.send(last) // a client that is gone needs no answer
	return nil
}
