package hub_test

import (
	"context"
	"testing"
	"time"

	"lighter/hub/catalog"
	"lighter/wire"
)

// Work whose job is paused runs when a user asks for it: the client would wait for ever otherwise.
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
	if _, err := h.client.Fsck(ctx, wire.Fsck{}, func(wire.Progress) {}); err != nil {
		t.Errorf("fsck: %v", err)
	}
	h.collect(0)
}
