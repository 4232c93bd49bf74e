package admin

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"lighter/hub/answer"
	"lighter/wire"
)

// progress is an answer of JSON objects, one in each line. Each line is sent at once. Until the
// first line is sent, the answer can still have a status other than 200. progress is safe for
// concurrent use.
type progress struct {
	mu      sync.Mutex // guards the following
	w       http.ResponseWriter
	encoder *json.Encoder
	begun   bool
	ended   bool
	silence *time.Timer // sends the line idle maxSilence after the last one
	idle    any
}

// maxSilence is the longest pause between two lines. Clients and proxies give up after longer ones.
const maxSilence = 5 * time.Second

// newProgress begins an answer. The caller calls end.
func newProgress(w http.ResponseWriter) *progress { return newLines(w, wire.Progress{Step: "wait"}) }

// newLines begins an answer in which idle says that nothing is new. The caller calls end or stop.
func newLines(w http.ResponseWriter, idle any) *progress {
	p := &progress{w: w, encoder: json.NewEncoder(w), idle: idle}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silence = time.AfterFunc(maxSilence, func() {
		_ = p.line(p.idle) // an error means that the client has gone
	})
	return p
}

func (p *progress) send(line wire.Progress) error { return p.line(line) }

func (p *progress) line(line any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.write(line)
}

// write sends a line, unless the answer has ended. p.mu is held.
func (p *progress) write(line any) error {
	if p.ended {
		return nil
	}
	if !p.begun {
		p.w.Header().Set("Content-Type", "application/x-ndjson")
		p.w.Header().Set("Cache-Control", "no-store")
		p.begun = true
	}
	if err := p.encoder.Encode(line); err != nil {
		return err
	}
	p.silence.Reset(maxSilence)
	return http.NewResponseController(p.w).Flush()
}

// hasBegun reports whether a line was sent.
func (p *progress) hasBegun() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begun
}

// stop ends the answer without a further line.
func (p *progress) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.silence.Stop()
}

// end sends the last line, with err in it. If nothing was sent yet, and last has no images, end
// returns err instead.
func (p *progress) end(last wire.Progress, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() {
		p.ended = true
		p.silence.Stop()
	}()
	if err != nil && !p.begun && len(last.Images) == 0 {
		return err
	}
	if err != nil {
		last.Error = err.Error()
		if status := answer.Status(err); status != http.StatusInternalServerError {
			last.Status = status
		}
	}
	_ = p.write(last) // an error means that the client has gone
	return nil
}
