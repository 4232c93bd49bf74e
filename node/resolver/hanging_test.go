package resolver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/sleep"
	"lighter/store/origin"
)

// late is an Answerer that answers after some time, unless its context ends before.
type late struct {
	Answerer
	after time.Duration
}

func (l late) Answer(ctx context.Context, q Request) (*Answer, error) {
	if !sleep.For(ctx, l.after) {
		return nil, fmt.Errorf("the registry: %w", context.Cause(ctx))
	}
	return l.Answerer.Answer(ctx, q)
}

// If a source hangs, a pull waits for it no longer than its budget, and the reason says so. The
// sources after it are asked in time.
func TestHangingSource(t *testing.T) {
	files := directory(t.TempDir())
	files.addImage(t, statement(1))
	knows, unknown := named{files, "the files", nil}, named{files, "", missingError("nobody knows it")}
	// The pause is longer than the time of the first of two sources, and mostly shorter than 20 s.
	busy := named{files, "", &origin.Unavailable{Err: errors.New("the hub is busy"), After: 15*time.Second + 1}}
	after := func(d time.Duration) Answerer { return late{knows, d} }
	hangs := after(time.Hour)
	const waited, source = "the registry: no answer within ", "it is part of an image that comes from the files"
	for name, c := range map[string]struct {
		answerers []Answerer
		why       string // why the chain is lazy; empty: it is not
		err       string // why it is not lazy
		waits     time.Duration
	}{
		"one that hangs": {[]Answerer{hangs}, "", waited + "20s", lookupTimeout},
		"the first one hangs": {[]Answerer{hangs, knows}, source + " (asked before: " + waited + "15s)", "",
			lookupTimeout - nextTime},
		"the first one hangs, the second one is slow": {[]Answerer{hangs, after(4 * time.Second)},
			source + " (asked before: " + waited + "15s)", "", lookupTimeout - time.Second},
		"the first one hangs, the second one does not know": {[]Answerer{hangs, unknown}, "",
			waited + "15s; nobody knows it", lookupTimeout - nextTime},
		"the second one hangs": {[]Answerer{unknown, hangs}, "", "nobody knows it; " + waited + "20s",
			lookupTimeout},
		"the first one asks for a long pause": {[]Answerer{busy, unknown}, "", "the hub is busy; nobody knows it", 0},
		"the second one is not asked":         {[]Answerer{knows, hangs}, source, "", 0},
		"two hang": {[]Answerer{hangs, hangs, knows},
			source + " (asked before: " + waited + "10s; " + waited + "15s)", "", lookupTimeout - nextTime},
		"all hang": {[]Answerer{hangs, hangs, hangs}, "", waited + "10s; " + waited + "15s; " + waited + "20s",
			lookupTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &fakeHub{key: key, local: true}
				root := t.TempDir()
				keys, err := NewKeys(root, nil, h)
				if err != nil {
					t.Fatal(err)
				}
				r := open(t, h, Config{Root: root, Trust: TrustChain, Answerers: c.answerers,
					Trees: &fakeTrees{t: t, onDisk: map[chunk.ID]bool{}}, Keys: keys,
					Log: slog.New(slog.DiscardHandler)})
				r.Hold(chainID(0))
				begin := time.Now()
				why, err := r.Claim(t.Context(), Request{Chain: chainID(0), MoreAbove: true})
				if waits := time.Since(begin); waits != c.waits {
					t.Errorf("the pull has waited %s, want %s", waits, c.waits)
				}
				switch {
				case c.err == "" && (err != nil || why != c.why):
					t.Errorf("got %q, %v; want %q", why, err, c.why)
				case c.err != "" && (err == nil || err.Error() != c.err || errors.Is(err, chunk.ErrNotFound)):
					t.Errorf("got %q, error %v; want the error %q, and that the image may be known", why, err, c.err)
				}
				if c.err != "" { // the next layer does not wait again
					begin := time.Now()
					_, err := r.Claim(t.Context(), Request{Chain: chainID(1), Parent: chainID(0)})
					if err == nil || !strings.Contains(err.Error(), c.err) || time.Since(begin) != 0 {
						t.Errorf("the next layer: error %v after %s, want the same at once", err, time.Since(begin))
					}
				}
				time.Sleep(2 * answerTTL)
			})
		})
	}
}
