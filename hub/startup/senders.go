package startup

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"lighter/format/chunk"
)

// SenderOf returns the sender that an address belongs to. An IPv6 network of 64 bits is one sender.
// For loopback and unknown addresses it returns "", which has no limits.
func SenderOf(address netip.Addr) string {
	address = address.Unmap().WithZone("")
	if !address.IsValid() || address.IsLoopback() {
		return ""
	}
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	network, err := address.Prefix(bits)
	if err != nil {
		return address.String()
	}
	return network.Masked().String()
}

// senders counts the contributions of senders. The zero value is ready to use. It is safe for
// concurrent use.
type senders struct {
	mu  sync.Mutex // guards the following
	all map[senderTree]contribution
}

// senderTree is a sender and a tree of one domain.
type senderTree struct {
	in     *recordings
	sender string
	tree   chunk.ID
}

func (r *recordings) from(sender string, tree chunk.ID) senderTree {
	return senderTree{r, sender, tree}
}

// contribution counts what a sender has sent of a tree in a senderWindow.
type contribution struct {
	since             time.Time // the beginning of the window
	traces, workloads int
}

// forget removes all contributions to a tree of a domain.
func (s *senders) forget(in *recordings, tree chunk.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.all, func(key senderTree, _ contribution) bool { return key.in == in && key.tree == tree })
}

// count adds traces of a tree, and workloads that they began, to a sender's contribution. It
// returns false, and adds nothing, if that would exceed the limits.
func (s *senders) count(key senderTree, traces, workloads int, now time.Time) bool {
	if key.sender == "" {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.all[key]
	if now.Sub(c.since) > senderWindow {
		c = contribution{since: now}
	}
	c.traces += traces
	c.workloads += workloads
	if c.traces > senderTraces || c.workloads > senderWorkloads {
		return false
	}
	if _, known := s.all[key]; !known && len(s.all) >= maxSenders {
		maps.DeleteFunc(s.all, func(_ senderTree, c contribution) bool { return now.Sub(c.since) > senderWindow })
		if len(s.all) >= maxSenders { // the limits protect from a few senders, not from this many
			clear(s.all)
		}
	}
	if s.all == nil {
		s.all = map[senderTree]contribution{}
	}
	s.all[key] = c
	return true
}
