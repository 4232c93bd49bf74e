package startup

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/hub/catalog"
	"lighter/hub/report"
)

// The error for a sender at its limit names that limit. It differs from the error for too many
// pending traces.
func TestSenderFull(t *testing.T) {
	r := recordings{senders: &senders{}}
	tree := chunk.Sum([]byte("a"))
	r.senders.count(r.from("10.0.0.1/32", tree), senderTraces, 0, time.Now())
	err := r.add(t.Context(), tree, "10.0.0.1/32", trace.Trace{}, 0)
	if !errors.Is(err, report.ErrSenderFull) || errors.Is(err, catalog.ErrFull) {
		t.Errorf("one more trace: error %v, want %v", err, report.ErrSenderFull)
	}
}

// A sender's traces and new workloads of a tree are limited. Other trees, senders and domains have
// limits of their own.
func TestSenders(t *testing.T) {
	var s senders
	one, other := &recordings{}, &recordings{}
	treeA, treeB, now := chunk.Sum([]byte("a")), chunk.Sum([]byte("b")), time.UnixMilli(1)
	const sender = "10.0.0.1/32"
	a, b := one.from(sender, treeA), one.from(sender, treeB)
	for i := range senderTraces + 5 {
		if got, want := s.count(a, 1, 0, now), i < senderTraces; got != want {
			t.Fatalf("trace %d is accepted: %v, want %v", i+1, got, want)
		}
	}
	for i := range senderWorkloads + 5 {
		if got, want := s.count(b, 0, 1, now), i < senderWorkloads; got != want {
			t.Fatalf("workload %d is accepted: %v, want %v", i+1, got, want)
		}
	}
	if !s.count(one.from("10.0.0.2/32", treeA), 1, 1, now) || !s.count(other.from(sender, treeA), 1, 1, now) {
		t.Error("another sender's trace, or a trace in another domain, is refused")
	}
	for range 2 * senderTraces {
		if !s.count(one.from("", treeA), 1, 1, now) {
			t.Fatal("a trace of the hub's own machine is refused")
		}
	}
	if !s.count(a, 1, 1, now.Add(senderWindow+1)) {
		t.Error("a trace a week later is refused")
	}
	for i := range 2 * maxSenders {
		address := netip.AddrFrom4([4]byte{1, byte(i >> 16), byte(i >> 8), byte(i)}).String()
		s.count([]*recordings{one, other}[i%2].from(address, treeA), 1, 0, now)
	}
	if len(s.all) > maxSenders {
		t.Errorf("%d pairs of sender and tree in memory, want at most %d", len(s.all), maxSenders)
	}
}

func TestSenderOf(t *testing.T) {
	for address, want := range map[string]string{"10.1.2.3": "10.1.2.3/32", "::ffff:10.1.2.3": "10.1.2.3/32",
		"127.0.0.2": "", "::1": "",
		"2001:db8:1:2:3::4": "2001:db8:1:2::/64", "fe80::1%eth0": "fe80::/64"} {
		if got := SenderOf(netip.MustParseAddr(address)); got != want {
			t.Errorf("sender of %s: %q, want %q", address, got, want)
		}
	}
	if got := SenderOf(netip.Addr{}); got != "" {
		t.Errorf("sender of an unknown address: %q, want none", got)
	}
}
