package resolver

import (
	"context"
	"time"

	"lighter/sleep"
	"lighter/wire"
)

// The time that a pull waits for an image that a hub is about to have. Otherwise a pull that
// follows a push within seconds would fetch and unpack all layers.
//
// A pull waits only if that is shorter than pulling. pullRate is about as fast as containerd pulls
// and unpacks: sci, of 406 MB, took 11.8 s (docs/benchmarks-runtimes.md). So a pull that waits in
// vain takes twice as long at most. A hub that does not keep its first word costs less: then the
// pull goes on without it.
const (
	pullRate = 35e6        // compressed bytes a second
	pullTime = time.Second // what a pull takes in addition, however small the image is

	// maxOverrun and overrunTime bound the wait by the hub's first word.
	maxOverrun  = 1.5
	overrunTime = time.Second
	longestSoon = 2 * time.Minute

	// The pauses between two questions.
	longestPause  = 500 * time.Millisecond
	shortestPause = 50 * time.Millisecond
)

// soonWait is a pull's wait for an image that is about to be ready.
type soonWait struct {
	begun time.Time
	limit time.Duration // 0: the wait has not begun
}

// pause returns how long to pause before the next lookup, or false if the pull is to go on without
// the hub.
func (w *soonWait) pause(now time.Time, said wire.Soon) (time.Duration, bool) {
	if said.Bytes < 0 || !(said.Seconds >= 0 && said.Seconds <= longestSoon.Seconds()) {
		return 0, false
	}
	left := seconds(said.Seconds)
	if w.limit == 0 {
		pull := pullTime + seconds(min(float64(said.Bytes)/pullRate, longestSoon.Seconds()))
		w.begun, w.limit = now, min(pull, seconds(said.Seconds*maxOverrun)+overrunTime, longestSoon)
	}
	if now.Sub(w.begun)+left > w.limit {
		return 0, false
	}
	return min(max(left, shortestPause), longestPause), true
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// awaitSoon waits for a while if an answerer is about to have the image of a pull. It reports
// whether the answerers are to be asked again. A pull that unpacks the layer below does not wait,
// because it will unpack this layer, too.
func (r *Resolver) awaitSoon(ctx context.Context, q Request, w *soonWait) bool {
	if q.Pulled == "" || q.Parent != "" && r.patience(q) == brief {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, longestSoon)
	defer cancel()
	soon, err := askFirst(r.config.Answerers, func(a Answerer) (*wire.Soon, error) { return a.Soon(ctx, q.Pulled) })
	if err != nil {
		r.log.Debug("no hub is about to have an image", "manifest", q.Pulled, "err", err)
		return false
	}
	isFirst := w.limit == 0
	pause, ok := w.pause(time.Now(), *soon)
	if ok && isFirst {
		r.log.Info("a pull waits for its image, which the hub is about to have", "image", q.Reference,
			"manifest", q.Pulled, "duration", seconds(soon.Seconds))
	}
	return ok && sleep.For(ctx, pause)
}
