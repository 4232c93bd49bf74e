package hub_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"lighter/hub/catalog"
	"lighter/wire"
)

// A paused check or collection runs when a user requests it. Otherwise the client would wait for
// ever.
func TestPausedWorkRunsOnRequest(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	for kind, key := range map[string]string{"fsck": "all objects", "collect": "all"} {
		n, err := h.Catalog().Jobs.Add(t.Context(), catalog.Job{Kind: kind, Key: key}, time.Hour)
		if err == nil {
			_, err = h.client.PauseJob(t.Context(), n)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := h.client.Fsck(ctx, wire.Fsck{}, silent); err != nil {
		t.Errorf("fsck: %v", err)
	}
	h.collect(0)
}

// A client that waits for a job of any kind gets an error when the job is paused.
func TestPausedWorkEndsTheWait(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.pushReady("a:1", image(lowerTar))
	h.idle()
	h.stop()
	waiting := openHub(t, h.config) // it runs no jobs
	defer waiting.Close()
	r := startRegistry(t, image(upperTar))
	quiet := func(wire.Progress) error { return nil }
	for _, c := range []struct {
		kind, key string
		wait      func(ctx context.Context) error
	}{
		{"image", "b:1", func(ctx context.Context) error {
			_, err := waiting.Images().Add(ctx, wire.Add{Source: r.source(), Name: "b:1"}, quiet)
			return err
		}},
		{"name", "a:1", func(ctx context.Context) error { return waiting.Names().Remove(ctx, "a:1") }},
		{"verify", "a:1", func(ctx context.Context) error {
			_, err := waiting.Verifier().Verify(ctx, "a:1", quiet)
			return err
		}},
		{"fsck", "all objects", func(ctx context.Context) error {
			_, err := waiting.Checker().Fsck(ctx, wire.Fsck{}, quiet)
			return err
		}},
		{"collect", "all", func(ctx context.Context) error {
			j, err := waiting.Collector().Start(ctx)
			if err == nil {
				_, err = waiting.Collector().Await(ctx, j.N, quiet)
			}
			return err
		}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- c.wait(ctx) }()
		j, err := waiting.Catalog().Jobs.Open(ctx, c.kind, c.key)
		for err != nil && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
			j, err = waiting.Catalog().Jobs.Open(ctx, c.kind, c.key)
		}
		if err == nil {
			_, err = waiting.Jobs().Pause(ctx, j.N)
		}
		if err != nil {
			t.Fatalf("%s: %v", c.kind, err)
		}
		if err := <-done; err == nil || !strings.Contains(err.Error(), "is paused") ||
			!strings.Contains(err.Error(), "lighter jobs retry") {
			t.Errorf("%s: the client got %v, want an error that says how to go on", c.kind, err)
		}
	}
}
