package sleep

import (
	"math"
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	b := Backoff{First: time.Second, Most: 30 * time.Second}
	for failures, want := range map[int]time.Duration{
		math.MinInt: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second,
		6: 30 * time.Second, 64: 30 * time.Second, 65: 30 * time.Second, math.MaxInt: 30 * time.Second,
	} {
		if got := b.After(failures); got != want {
			t.Errorf("after %d failures: got %s, want %s", failures, got, want)
		}
	}
	longest := Backoff{First: 1, Most: math.MaxInt64}
	if got := longest.After(63); got != 1<<62 {
		t.Errorf("after 63 failures: got %d ns, want 1<<62", got)
	}
	if got := longest.After(64); got != math.MaxInt64 {
		t.Errorf("after 64 failures: got %d ns, want the most", got)
	}
	if got := (Backoff{}).After(3); got != 0 {
		t.Errorf("the zero value: got %s, want 0", got)
	}
}

func TestBackoffJitter(t *testing.T) {
	b := Backoff{First: 100 * time.Millisecond, Most: 400 * time.Millisecond, Jitter: 0.25}
	for failures, most := range map[int]time.Duration{
		1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 3: 400 * time.Millisecond, 9: 400 * time.Millisecond,
	} {
		shortest, longest := most, time.Duration(0)
		for range 1000 {
			got := b.After(failures)
			shortest, longest = min(shortest, got), max(longest, got)
		}
		if shortest < most*3/4 || longest > most || longest-shortest < most/5 {
			t.Errorf("after %d failures: got %s to %s, want three quarters of %s to all of it",
				failures, shortest, longest, most)
		}
	}
	all := Backoff{First: time.Second, Most: time.Second, Jitter: 1}
	for range 1000 {
		if got := all.After(1); got < 0 || got > time.Second {
			t.Errorf("got %s, want 0s to 1s", got)
		}
	}
}
