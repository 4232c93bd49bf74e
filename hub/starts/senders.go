package starts

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"lighter/format/chunk"
)

// What one sender may contribute to what is known of a tree, each senderWindow. The
// workloads that it may begin are fewer than those that are kept: it does not push out
// all of others.
const (
	senderWindow    = 7 * 24 * time.Hour
	senderTraces    = 64
	senderWorkloads = 8
	// maxSenders bounds those that are remembered, of each tree one: 200 bytes each.
	maxSenders = 20_000
)

// SenderOf names who has sent something from an address: an IPv6 network of 64 bits
// is one. This machine is nobody in particular: it may send what it likes, and so may
// who has no address.
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

// senders counts what senders contribute. It is safe for concurrent use, and of use
// when it is zero.
type senders struct {
	mu  sync.Mutex // guards the following
	all map[senderTree]contribution
}

type senderTree struct {
	sender string
	tree   chunk.ID
}

type contribution struct {
	since             time.Time
	traces, workloads int
}

// forget forgets what all have contributed to what is known of a tree.
func (s *senders) forget(tree chunk.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.all, func(key senderTree, _ contribution) bool { return key.tree == tree })
}

// count counts more traces of a tree, and workloads that they have begun, unless the
// sender would then have contributed more than it may.
func (s *senders) count(sender string, tree chunk.ID, traces, workloads int, now time.Time) bool {
	if sender == "" {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := senderTree{sender, tree}
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
		if len(s.all) >= maxSenders { // so many are no single sender
			clear(s.all)
		}
	}
	if s.all == nil {
		s.all = map[senderTree]contribution{}
	}
	s.all[key] = c
	return true
}
