package chain

import "time"

// Event is one decision: whether a chain is lazy, and why.
type Event struct {
	Time  time.Time `json:"time"`
	Chain string    `json:"chain"`
	Image string    `json:"image,omitempty"` // its reference, if containerd named it
	Lazy  bool      `json:"lazy"`
	Why   string    `json:"why"`
}

// maxEvents bounds the decisions that are remembered.
const maxEvents = 256

// note remembers a decision, the latest for each chain, for people who wonder.
func (r *Resolver) note(chain string, labels map[string]string, lazy bool, why string) {
	e := Event{Time: time.Now(), Chain: chain, Image: labels[imageLabel], Lazy: lazy, Why: why}
	r.log.Debug("chain", "chain", chain, "image", e.Image, "lazy", lazy, "why", why)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.events {
		if r.events[i].Chain == chain {
			r.events = append(r.events[:i], r.events[i+1:]...)
			break
		}
	}
	if len(r.events) >= maxEvents {
		r.events = r.events[1:]
	}
	r.events = append(r.events, e)
}

// Events returns the latest decisions, oldest first.
func (r *Resolver) Events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Event(nil), r.events...)
}
