package disk

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lighter/test/testkit/eventually"
)

// Abandoned operations count until they end, and use the breaker's slots.
func TestAbandonedOperations(t *testing.T) {
	b := &breaker{patience: time.Millisecond, slots: make(chan struct{}, 2), maxHung: 2, maxBad: 1}
	var also, begun atomic.Int64
	answer := make(chan struct{})
	for range 3 {
		err := b.do(func() {
			begun.Add(1)
			<-answer
		}, &also)
		if err != errHangs {
			t.Errorf("an operation that hangs: got %v, want %v", err, errHangs)
		}
	}
	if b.abandoned.Load() != 2 || also.Load() != 2 || b.hangsSince().IsZero() || !b.isOpen() {
		t.Errorf("got %d abandoned operations, %d of the segment, open %t, want 2, 2, true",
			b.abandoned.Load(), also.Load(), b.isOpen())
	}
	close(answer)
	eventually.Holds(t, "all have ended", func() bool {
		return b.abandoned.Load() == 0 && also.Load() == 0 && len(b.slots) == 0 && !b.isOpen()
	})
	if begun.Load() != 2 {
		t.Errorf("got %d operations begun, want 2", begun.Load())
	}
	b.patience = time.Minute
	done := false
	if err := b.do(func() { done = true }, &also); err != nil || !done || b.abandoned.Load() != 0 {
		t.Errorf("an operation that ends: got %v, done %t; want no error, and no abandoned operation", err, done)
	}
}

// Failures in a row open a breaker for a while; a success in between starts the count anew.
func TestFailuresOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReads()
		for range 3 {
			for range badReads - 1 {
				b.failed()
			}
			b.succeeded()
		}
		if b.isOpen() {
			t.Errorf("after fewer than %d failures in a row: got open, want closed", badReads)
		}
		for range badReads {
			b.failed()
		}
		if until := b.openUntil(); !b.isOpen() || time.Until(until) != pause {
			t.Errorf("after %d failures in a row: got open %t for %v, want for %v",
				badReads, b.isOpen(), time.Until(until), pause)
		}
		time.Sleep(pause)
		if b.isOpen() || !b.openUntil().IsZero() {
			t.Error("after the pause: got open, want closed")
		}
	})
}
