package prefetch

import (
	"context"
	"testing"

	"lighter/format/chunk"
)

// never is a Fetcher whose units never arrive.
type never struct{}

func (never) Prefetch(ctx context.Context, _ chunk.Ref) error { <-ctx.Done(); return ctx.Err() }

// counting returns a shelf that calls done when n chunks were requested.
func counting(n int, done func()) *shelf {
	s := &shelf{requested: map[chunk.ID]int{}, done: done}
	s.enough = func() bool { return len(s.requested) == n }
	return s
}

func TestQueueFetchesAllRequests(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, q := counting(100, cancel), newQueue(quiet)
	r := q.requestsOf(s)
	for i := range 100 {
		if !r.add(chunk.Ref{ID: chunk.ID{byte(i)}}) {
			t.Fatalf("no room for request %d", i)
		}
	}
	q.run(ctx) // until all units are fetched
	if len(s.requested) != 100 {
		t.Errorf("%d units were fetched, want 100", len(s.requested))
	}
}

// Close drops the queued requests of the device, and not those of another device.
func TestClosedDeviceHasNoRequests(t *testing.T) {
	d, s := shelved(t, Options{})
	q := d.requests.queue
	other := q.requestsOf(s)
	for i := range 10 {
		d.requests.add(chunk.Ref{ID: chunk.ID{byte(i)}})
		other.add(chunk.Ref{ID: chunk.ID{byte(100 + i)}})
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if r, ref := q.next(t.Context()); r != other || ref.ID[0] != byte(100+i) {
			t.Errorf("request %d is for %v, want one of the other device", i, ref.ID)
		}
	}
	if len(q.devices) > 0 {
		t.Errorf("%d devices have requests, want none", len(q.devices))
	}
}

// A device whose requests are stuck does not delay the requests of another device. The number of
// its requests is bounded.
func TestQueueIsFair(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, q := counting(100, cancel), newQueue(quiet)
	stuck, other := q.requestsOf(never{}), q.requestsOf(s)
	for i := range 2 * maxQueued {
		ref := chunk.Ref{ID: chunk.Sum([]byte{byte(i), byte(i >> 8)})}
		if room := stuck.add(ref); room != (i < maxQueued) {
			t.Fatalf("room for request %d: %v, want %v", i, room, i < maxQueued)
		}
	}
	for i := range 100 {
		other.add(chunk.Ref{ID: chunk.ID{byte(i)}})
	}
	q.run(ctx) // until all units of the other device are fetched
	if len(s.requested) != 100 {
		t.Errorf("%d units were fetched, want 100", len(s.requested))
	}
}
