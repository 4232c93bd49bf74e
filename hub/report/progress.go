package report

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"lighter/wire"
)

// Progress lists the steps of some work. The zero value is ready to use. It is safe for concurrent
// use.
type Progress struct {
	mu    sync.Mutex // guards the following
	steps []*Step
}

// Step is one item of some work, for example a layer, with the number of bytes that are done.
type Step struct {
	kind, name string
	total      int64
	bytes      atomic.Int64
}

// Add adds to the number of bytes that are done.
func (s *Step) Add(n int) { s.bytes.Add(int64(n)) }

// maxSteps bounds the steps of a Progress. Further steps are not reported.
const maxSteps = 1000

// Step adds a step of total bytes. kind and name become wire.Progress.Step and Item.
func (p *Progress) Step(kind, name string, total int64) *Step {
	s := &Step{kind: kind, name: name, total: total}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.steps) < maxSteps {
		p.steps = append(p.steps, s)
	}
	return s
}

// Lines returns the current state of the first limit steps. If limit is 0 or less, Lines returns
// the state of all steps.
func (p *Progress) Lines(limit int) []wire.Progress {
	p.mu.Lock()
	steps := p.steps
	p.mu.Unlock()
	if limit > 0 {
		steps = steps[:min(len(steps), limit)]
	}
	lines := make([]wire.Progress, len(steps))
	for i, s := range steps {
		lines[i] = wire.Progress{Step: s.kind, Item: s.name, Bytes: s.bytes.Load(), Total: s.total}
	}
	return lines
}

// Sender sends progress to one client.
type Sender struct {
	send func(wire.Progress) error
	sent map[lineKey]int64 // bytes
}

// lineKey identifies a step.
type lineKey struct{ step, item string }

// NewSender returns a sender that calls send for each step that has changed.
func NewSender(send func(wire.Progress) error) *Sender {
	return &Sender{send: send, sent: map[lineKey]int64{}}
}

// Send sends the lines of steps that have changed.
func (s *Sender) Send(lines []wire.Progress) error {
	for _, line := range lines {
		key := lineKey{line.Step, line.Item}
		if bytes, known := s.sent[key]; known && bytes == line.Bytes {
			continue
		}
		s.sent[key] = line.Bytes
		if err := s.send(line); err != nil {
			return err
		}
	}
	return nil
}

// sendEvery is the pause between two reports to a client.
const sendEvery = 200 * time.Millisecond

// Await sends progress until done is closed. It returns early with an error of send, or with ctx's
// cause. The work goes on in both cases.
func (s *Sender) Await(ctx context.Context, done <-chan struct{}, p *Progress) error {
	tick := time.NewTicker(sendEvery)
	defer tick.Stop()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := s.Send(p.Lines(0)); err != nil {
			return err
		}
	}
	return nil
}
