package node

import (
	"slices"
	"strings"
	"testing"
	"time"

	"lighter/format/chunk"
)

// Units are asked for once each, pack after pack; chunks of which nobody knows where
// they lie one by one.
func TestInPackOrder(t *testing.T) {
	at := func(pack string, n uint32) unitChunks {
		u := unitChunks{bytes: 10}
		if pack != "" {
			u.ref.Unit = chunk.Unit{Pack: chunk.Sum([]byte(pack)), N: n}
		}
		return u
	}
	got := inPackOrder([]unitChunks{at("b", 3), at("a", 1), at("", 0), at("b", 2), at("a", 0), at("b", 3), at("", 0)})
	want := []unitChunks{at("b", 2), at("b", 3), at("a", 0), at("a", 1), at("", 0), at("", 0)}
	want[1].bytes = 20
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A cache that gives way is left alone for a while.
func TestCompletionIsCalm(t *testing.T) {
	c, now := newCompletion(DefaultConfig()), time.Now()
	for _, step := range []struct {
		evicted int64
		after   time.Duration
		calm    bool
	}{{0, 0, true}, {5, time.Minute, false}, {5, completeCalm, false}, {9, completeCalm, false}, {9, 2*completeCalm - 1, false}, {9, 2 * completeCalm, true}} {
		if got := c.isCalm(step.evicted, now.Add(step.after)); got != step.calm {
			t.Errorf("with %d evicted after %s: %t", step.evicted, step.after, got)
		}
	}
}

func TestCompletionForPeople(t *testing.T) {
	mine, other := chunk.Sum([]byte("mine")), chunk.Sum([]byte("other"))
	for _, test := range []struct {
		s    CompletionStatus
		want string
	}{{CompletionStatus{}, ""}, {CompletionStatus{Tree: mine, Left: 3 << 20}, "3.0 MiB to fetch"}, {CompletionStatus{Tree: mine}, "is made"},
		{CompletionStatus{Tree: other, Left: 3 << 20}, ""}, {CompletionStatus{Waits: "it rains"}, "waits: it rains"}, {CompletionStatus{Failed: "no space"}, "failed: no space"}} {
		if got := test.s.of(mine); !strings.Contains(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%+v is told as %q", test.s, got)
		}
	}
}
