package bench

import (
	"context"
	"fmt"
	"time"

	"lighter/test/testkit/site"
	"lighter/wire"
)

const (
	// layoutLimit bounds the time until a hub has made and recompressed an image's startup packs.
	// For PyTorch with CUDA this took six minutes on two cores.
	layoutLimit = 20 * time.Minute
	// layoutStable is the time for which the packs must not change.
	layoutStable   = 6 * time.Second
	layoutInterval = 200 * time.Millisecond // between two requests to the hub
)

// AwaitLayout waits until a hub has made and recompressed an image's startup packs, and returns
// their description. It waits until the hub uses at least starts recorded starts of the image. With
// starts = 0, the hub may use its guess; without a guess, there are no packs.
func AwaitLayout(ctx context.Context, h *site.Hub, image string, starts int64) (packs string, err error) {
	var last string
	var since time.Time
	for end := time.Now().Add(layoutLimit); ; {
		known, err := ask[wire.Starts](ctx, h, image, "trace show")
		if err != nil {
			return "", err
		}
		var recorded int64
		for _, w := range known.Workloads {
			recorded += w.Starts
		}
		if now := describe(known); now != last {
			last, since = now, time.Now()
		}
		switch {
		case recorded >= starts && !known.Pending && time.Since(since) >= layoutStable:
			return last, nil
		case time.Now().After(end):
			return "",
				fmt.Errorf("startup packs of %s: not made within %s: %d of %d recorded starts are used, pending: %v",
					image, layoutLimit, recorded, starts, known.Pending)
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(layoutInterval):
		}
	}
}

// describe describes the workloads and startup packs of an image.
func describe(s wire.Starts) string {
	var bytes, atMount int64
	for _, p := range s.Packs {
		bytes += p.Bytes
		if p.AtMount {
			atMount += p.Bytes
		}
	}
	return fmt.Sprintf("%d workloads, %d startup packs of %s, of which %s are fetched at each mount",
		len(s.Workloads), len(s.Packs), Size(bytes), Size(atMount))
}
