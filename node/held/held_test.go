package held

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/wire"
	"lighter/wire/client"
)

const testDelay = time.Minute

// hubs is a Hubs that records reports. answers has a function for each origin, which answers its
// reports.
type hubs struct {
	// mu guards the following and node.trees. The test holds it, except during a call of after.
	mu      sync.Mutex
	answers []func() (wire.Unknown, error)
	reports [][]wire.Held
}

func (h *hubs) Origins() (urls []string) {
	h.reports = make([][]wire.Held, len(h.answers))
	for range h.answers {
		urls = append(urls, "http://hub")
	}
	return urls
}

func (h *hubs) SendHeld(_ context.Context, origin int, held wire.Held) (wire.Unknown, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reports[origin] = append(h.reports[origin], held)
	return h.answers[origin]()
}

func accepts() (wire.Unknown, error) { return wire.Unknown{}, nil }

func fails() (wire.Unknown, error) { return wire.Unknown{}, errors.New("it is away") }

func refuses() (wire.Unknown, error) { return wire.Unknown{}, &client.Error{Status: 404} }

// node is a reporter with the trees of its node.
type node struct {
	*Reporter
	trees []chunk.ID
}

// start runs a reporter until the test ends. It runs in a bubble of synctest.
func start(t *testing.T, root string, h *hubs, trees ...chunk.ID) *node {
	t.Helper()
	n := &node{trees: trees}
	n.Reporter = New(root, testDelay, func() ([]chunk.ID, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		return slices.Clone(n.trees), nil
	}, h,
		slog.New(slog.DiscardHandler))
	h.mu.Lock()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); n.Run(ctx) }()
	t.Cleanup(func() { h.mu.Unlock(); cancel(); <-done })
	return n
}

// after lets time pass.
func (h *hubs) after(d time.Duration) {
	h.mu.Unlock()
	time.Sleep(d)
	synctest.Wait()
	h.mu.Lock()
}

var treeOne, treeTwo = chunk.ID{1}, chunk.ID{2}

// Each hub gets all trees: soon after the start, after a change, and every few hours.
func TestReports(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &hubs{answers: []func() (wire.Unknown, error){accepts, accepts}}
		n := start(t, root, h, treeTwo, treeOne)
		h.after(2 * testDelay)
		for i, reports := range h.reports {
			if len(reports) != 1 || !slices.Equal(reports[0].Trees, []chunk.ID{treeOne, treeTwo}) ||
				reports[0].Kind != wire.HolderNode || !wire.IsHolderID(reports[0].Holder) {
				t.Fatalf("hub %d got %+v, want one report of two trees", i, reports)
			}
		}
		h.after(4 * time.Hour)
		if len(h.reports[0]) != 1 {
			t.Errorf("%d reports without a change, want one", len(h.reports[0]))
		}
		n.trees = []chunk.ID{treeTwo}
		h.after(3 * testDelay)
		if got := h.reports[0]; len(got) != 2 || !slices.Equal(got[1].Trees, []chunk.ID{treeTwo}) {
			t.Errorf("after a change: got reports %+v, want a second one with tree two", got)
		}
		h.after(wire.HeldInterval)
		if len(h.reports[0]) != 3 || len(h.reports[1]) != 3 {
			t.Errorf("%d and %d reports, want a third one after hours", len(h.reports[0]), len(h.reports[1]))
		}
		if s := n.Reports()[1]; s.Trees != 1 || s.Error != "" || s.Reported.IsZero() {
			t.Errorf("state %+v, want an accepted report of one tree", s)
		}
	})
}

// A hub that fails gets reports less and less often. An origin that accepts no reports gets a
// report every one or two days.
func TestFailures(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &hubs{answers: []func() (wire.Unknown, error){fails, refuses, accepts}}
		n := start(t, root, h, treeOne)
		h.after(wire.HeldInterval)
		if got := len(h.reports[0]); got < 6 || got > 20 {
			t.Errorf("a hub that fails got %d reports in six hours, want 6 to 20", got)
		}
		if got := len(h.reports[1]); got != 1 {
			t.Errorf("an origin that refuses got %d reports in six hours, want one", got)
		}
		if len(h.reports[2]) == 0 || n.Reports()[0].Error == "" {
			t.Errorf("the last hub got %d reports, want some; state %+v, want an error of the first hub",
				len(h.reports[2]), n.Reports())
		}
		h.after(2 * refusedPause)
		if got := len(h.reports[1]); got < 2 || got > 3 {
			t.Errorf("an origin that refuses got %d reports in two days, want 2 or 3", got)
		}
	})
}

// A tree is gone if all origins have said that they do not have it.
func TestGone(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		unknown := func(trees ...chunk.ID) func() (wire.Unknown, error) {
			return func() (wire.Unknown, error) { return wire.Unknown{Trees: trees}, nil }
		}
		h := &hubs{answers: []func() (wire.Unknown, error){unknown(treeOne, treeTwo), fails}}
		n := start(t, root, h, treeOne, treeTwo)
		h.after(2 * testDelay)
		if gone := n.Gone(); gone != nil {
			t.Errorf("gone while a hub does not answer: %v, want none", gone)
		}
		h.answers[1] = unknown(treeTwo)
		h.after(wire.HeldInterval)
		if gone := n.Gone(); !slices.Equal(gone, []chunk.ID{treeTwo}) {
			t.Errorf("gone: %v, want the tree that neither hub has", gone)
		}
	})
}

// The ID stays the same as long as the node's directory exists. A node with another directory has
// another ID.
func TestID(t *testing.T) {
	id := func(root string) string {
		t.Helper()
		held, err := New(root, testDelay, nil, &hubs{}, slog.New(slog.DiscardHandler)).report(nil)
		if err != nil {
			t.Fatal(err)
		}
		return held.Holder
	}
	root := t.TempDir()
	if first := id(root); id(root) != first || id(t.TempDir()) == first {
		t.Error("the ID has changed, or two nodes have the same ID")
	}
	info, err := os.Stat(filepath.Join(root, "holder"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want a file that only root can read", info.Mode(), err)
	}
	// If the secret cannot be stored, there is no report: each report would have another ID.
	reporter := New(filepath.Join(root, "none"), testDelay, nil, &hubs{}, slog.New(slog.DiscardHandler))
	if held, err := reporter.report(nil); err == nil {
		t.Errorf("reported as %s without a directory, want an error", held.Holder)
	}
}
