package bench

import (
	"context"
	"fmt"
	"time"

	"lighter/test/testkit/site"
	"lighter/wire"
)

const (
	// layoutLimit is how long a hub may take to lay out and recompress its startup packs. The
	// startup packs of PyTorch with CUDA took six minutes on two cores.
	layoutLimit = 20 * time.Minute
	// The packs must then stay unchanged for layoutStable. layoutInterval is the interval of the
	// checks.
	layoutStable   = 6 * time.Second
	layoutInterval = 200 * time.Millisecond
)

// AwaitLayout waits until a hub has made and recompressed an image's startup packs, and returns
// their description. With starts > 0 it waits until the hub uses so many recorded starts. With 0,
// the hub may use its guess. If the hub has no guess, there are no packs.
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
		case seen >= starts && !known.Pending && time.Since(since) >= layoutStable:
			return last, nil
		case time.Now().After(end):
			return "",
				fmt.Errorf("startup packs of %s: not made within %s: %d of %d recorded starts are used, pending: %v",
					image, layoutLimit, seen, starts, known.Pending)
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
	var bytes, first int64
	for _, p := range s.Packs {
		bytes += p.Bytes
		if p.AtMount {
			first += p.Bytes
		}
	}
	return fmt.Sprintf("%d workloads, %d startup packs of %s, of which %s are fetched at each mount",
		len(s.Workloads), len(s.Packs), Size(bytes), Size(first))
}
