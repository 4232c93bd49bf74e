package ondemand

import (
	"context"
	"errors"
	"testing"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/node/record"
)

// finder is a Finder that knows one image.
type finder struct{ tree chunk.ID }

func (f finder) FindTree(_ context.Context, word string) (chunk.ID, string, error) {
	if word != "tools:1" {
		return chunk.ID{}, "", errors.New("no such image")
	}
	return f.tree, word, nil
}

// mounts is a Mounts that counts calls of MountAgain without Unwatch.
type mounts struct{ watched int }

func (m *mounts) MountAgain(context.Context, chunk.ID) error { m.watched++; return nil }
func (m *mounts) Unwatch(chunk.ID)                           { m.watched-- }

// A cancelled recording calls Unwatch and sends no trace.
func TestCancelledRecording(t *testing.T) {
	m := &mounts{}
	r := &Recorder{
		Starts: record.New(false, func(trace.Trace) {}), Images: finder{chunk.Sum([]byte("tree"))}, Mounts: m,
		Send: func(context.Context, trace.Trace) error { t.Error("a trace was sent"); return nil },
	}
	if err := r.Record(t.Context(), "other:1", false, func(Progress) {}); err == nil {
		t.Error("an unknown image: got no error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := r.Record(ctx, "tools:1", false, func(Progress) { cancel() })
	if !errors.Is(err, context.Canceled) || m.watched != 0 {
		t.Errorf("got %v, %d trees watched; want %v, 0", err, m.watched, context.Canceled)
	}
}

// Without a hub, a trace that is to be sent is not recorded.
func TestNoHub(t *testing.T) {
	r := &Recorder{Starts: record.New(false, func(trace.Trace) {}), Images: finder{chunk.Sum([]byte("tree"))},
		Mounts: &mounts{}}
	if err := r.Record(t.Context(), "tools:1", false, func(Progress) {}); !errors.Is(err, errNoHub) {
		t.Errorf("got %v, want %v", err, errNoHub)
	}
}
