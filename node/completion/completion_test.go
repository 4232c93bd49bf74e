package completion

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
)

// Each unit occurs once, and the units of each pack follow each other. Chunks without a location
// are not merged.
func TestInPackOrder(t *testing.T) {
	at := func(pack string, n uint32) unit {
		u := unit{bytes: 10}
		if pack != "" {
			u.ref.Unit = chunk.Unit{Pack: chunk.Sum([]byte(pack)), N: n}
		}
		return u
	}
	got := inPackOrder([]unit{at("b", 3), at("a", 1), at("", 0), at("b", 2), at("a", 0), at("b", 3), at("", 0)})
	want := []unit{at("b", 2), at("b", 3), at("a", 0), at("a", 1), at("", 0), at("", 0)}
	want[1].bytes = 20
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The cache counts as steady once it has evicted nothing for steadyTime.
func TestSteadyCache(t *testing.T) {
	c, now := New(Options{}, Parts{}, nil), time.Now()
	for _, step := range []struct {
		evicted int64
		after   time.Duration
		steady  bool
	}{{0, 0, true}, {5, time.Minute, false}, {5, steadyTime, false}, {9, steadyTime, false}, {9, 2*steadyTime - 1,
		false}, {9, 2 * steadyTime, true}} {
		if got := c.isSteady(step.evicted, now.Add(step.after)); got != step.steady {
			t.Errorf("%d bytes evicted, after %s: got steady %t, want %t", step.evicted, step.after, got, step.steady)
		}
	}
}

// A tree's status is its own progress, or why no tree is being completed.
func TestStatusOfATree(t *testing.T) {
	mine, other := chunk.Sum([]byte("mine")), chunk.Sum([]byte("other"))
	for _, test := range []struct {
		s    Status
		want string
	}{
		{Status{}, ""}, {Status{Tree: mine, Left: 3 << 20}, "3.0 MiB to fetch"}, {Status{Tree: mine}, "is made"},
		{Status{Tree: other, Left: 3 << 20}, ""}, {Status{Waits: "the cache is full"}, "waits: the cache is full"},
		{Status{Failed: "no space"}, "failed: no space"},
	} {
		if got := test.s.Of(mine); !strings.Contains(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%+v: got %q, want %q", test.s, got, test.want)
		}
	}
}

// Other background work waits while the machine is short of memory, outside of the schedule, and
// for the rate.
func TestAdmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		short := func() error {
			if time.Since(began) < time.Minute {
				return errors.New("little memory")
			}
			return nil
		}
		c := New(Options{Rate: burst, Short: short}, Parts{}, nil)
		if err := c.Admit(t.Context(), 11*burst); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited < 70*time.Second || waited > 75*time.Second {
			t.Errorf("waited %s, want a minute, and 10 s for the rate", waited)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began = time.Now()
		if err := c.Admit(ctx, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}
