package bench

import (
	"context"
	"fmt"
	"time"

	"lighter/test/testkit/site"
	"lighter/wire"
)

// How long a hub may take to make its startup packs of what it was told, and to press
// them; how long these stay as they are then; and how often one looks.
const (
	layoutLimit = 5 * time.Minute
	layoutStays = 6 * time.Second
	layoutAgain = 200 * time.Millisecond
)

// AwaitLayout waits until a hub has made an image's startup packs of so many
// starts, or of its own guess, and has pressed them, and says what they are. There may be
// no guess.
func AwaitLayout(ctx context.Context, h *site.Hub, image string, starts int64) (packs string, err error) {
	var last string
	var since time.Time
	for end := time.Now().Add(layoutLimit); ; {
		known, err := ask[wire.Starts](ctx, h, image, "trace show")
		if err != nil {
			return "", err
		}
		var seen int64
		for _, w := range known.Workloads {
			seen += w.Starts
		}
		if now := describe(known); now != last {
			last, since = now, time.Now()
		}
		switch {
		case seen >= starts && !known.Pending && time.Since(since) >= layoutStays:
			return last, nil
		case time.Now().After(end):
			return "", fmt.Errorf("after %s the hub has made use of %d of %d recorded starts of %s (its packs are still to change: %v)", layoutLimit, seen, starts, image, known.Pending)
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(layoutAgain):
		}
	}
}

// describe says what a hub knows of an image's starts.
func describe(s wire.Starts) string {
	var bytes, first int64
	for _, p := range s.Packs {
		bytes += p.Bytes
		if p.AtMount {
			first += p.Bytes
		}
	}
	return fmt.Sprintf("%d workloads, %d startup packs of %s, %s of it at each start", len(s.Workloads), len(s.Packs), Size(bytes), Size(first))
}
