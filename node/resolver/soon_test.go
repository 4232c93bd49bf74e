package resolver

import (
	"context"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/wire"
)

// A pull waits for an image that its hub is about to have, if that is shorter than pulling and the
// hub keeps its word.
func TestSoon(t *testing.T) {
	const never = time.Hour
	for _, c := range []struct {
		name  string
		ready time.Duration                  // when the hub has the image
		left  func(at time.Duration) float64 // what the hub says at a time, in seconds
		bytes int64                          // of the image
		lazy  bool
		most  time.Duration // that the pull waits
	}{
		{"it keeps its word", 3 * time.Second, until(3), 117e6, true, 3200 * time.Millisecond},
		{"it takes a little longer", 4 * time.Second, until(3), 117e6, true, 4300 * time.Millisecond},
		{"it does not keep its word", never, func(time.Duration) float64 { return 1 }, 1e9, false, 2 * time.Second},
		{"it stops", never, until(3), 117e6, false, 5 * time.Second},
		{"pulling is shorter", 8 * time.Second, until(8), 117e6, false, 0},
		{"the image is small", 500 * time.Millisecond, until(0.5), 0, true, 600 * time.Millisecond},
		{"too long", never, func(time.Duration) float64 { return 1e6 }, 1 << 60, false, 0},
		{"below zero", never, func(time.Duration) float64 { return -1 }, 1e9, false, 0},
		{"no number", never, func(time.Duration) float64 { return math.NaN() }, 1e9, false, 0},
		{"no size", never, func(time.Duration) float64 { return 1 }, -1, false, 0},
	} {
		for _, trust := range []Trust{TrustImage, TrustChain} {
			t.Run(c.name+", trust "+string(trust), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					image := newImage("app", "a", "b")
					image.repositories = []string{"registry.test/app"}
					begin := time.Now()
					r, h := soonHub(t, image, begin.Add(c.ready))
					r.config.Trust = trust
					h.soon = func(string) *wire.Soon {
						return &wire.Soon{Seconds: c.left(time.Since(begin)), Bytes: c.bytes}
					}
					lazy, errs := claims(t, r, image.chains(t), image.from("registry.test/app"))
					if slices.Contains(lazy, !c.lazy) || time.Since(begin) > c.most {
						t.Errorf("lazy %v after %s (%v), want %v after %s at most", lazy, time.Since(begin), errs,
							c.lazy, c.most)
					}
					time.Sleep(2 * answerTTL)
				})
			})
		}
	}
}

// until returns what a hub says that will have an image at that number of seconds.
func until(ready float64) func(time.Duration) float64 {
	return func(at time.Duration) float64 { return max(0.1, ready-at.Seconds()) }
}

// soonHub returns a resolver, and its hub, which has an image from a time on.
func soonHub(t *testing.T, image fakeImage, ready time.Time) (*Resolver, *fakeHub) {
	t.Helper()
	r, h, _ := newTrusting(t, func(ctx context.Context, manifest string) (*wire.Manifest, error) {
		if time.Now().Before(ready) {
			return nil, chunk.ErrNotFound
		}
		return knowing(t, image)(ctx, manifest)
	})
	chains := image.chains(t)
	h.answer = func(_ context.Context, chain string) (*wire.Chain, error) {
		n := slices.Index(chains, chain)
		if n < 0 || time.Now().Before(ready) {
			return nil, chunk.ErrNotFound
		}
		var links []wire.Link
		for i, chain := range chains {
			links = append(links, wire.Link{Chain: chain, DiffID: image.diffIDs[i]})
			if i > 0 {
				links[i].Parent = chains[i-1]
			}
		}
		links[len(links)-1].Statement = image.answer(t).Statement
		return &wire.Chain{Link: links[n], Above: links[n+1:], Complete: true}, nil
	}
	return r, h
}

// A pull of an image that no hub is about to have asks once.
func TestNotSoon(t *testing.T) {
	for _, trust := range []Trust{TrustImage, TrustChain} {
		synctest.Test(t, func(t *testing.T) {
			image := newImage("app", "a", "b", "c")
			r, h := soonHub(t, image, time.Now().Add(time.Hour))
			r.config.Trust = trust
			asked := 0
			h.soon = func(string) *wire.Soon { asked++; return nil }
			begin := time.Now()
			lazy, _ := claims(t, r, image.chains(t), image.from("registry.test/app"))
			if slices.Contains(lazy, true) || asked != 1 || time.Since(begin) != 0 {
				t.Errorf("trust %s: lazy %v, asked %d times, waited %s; want one question and no wait",
					trust, lazy, asked, time.Since(begin))
			}
			time.Sleep(2 * answerTTL)
		})
	}
}

// A pull also waits for the upper layers of an image whose lower layers the hub knows of another
// image.
func TestSoonOnKnownBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		image := newImage("app", "a", "b", "c")
		chains := image.chains(t)
		begin := time.Now()
		r, h := soonHub(t, image, begin.Add(2*time.Second))
		r.config.Trust = TrustChain
		known := h.answer
		h.answer = func(ctx context.Context, chain string) (*wire.Chain, error) {
			if answer, err := known(ctx, chain); err == nil || chain != chains[0] {
				return answer, err
			}
			base := index.Sign(key, chain, chunk.Sum([]byte("tree of the base")))
			link := wire.Link{Chain: chain, DiffID: image.diffIDs[0], Statement: &base}
			return &wire.Chain{Link: link, Complete: true}, nil
		}
		h.soon = func(string) *wire.Soon { return &wire.Soon{Seconds: until(2)(time.Since(begin)), Bytes: 1e9} }
		lazy, errs := claims(t, r, chains, image.from("registry.test/app"))
		if slices.Contains(lazy, false) {
			t.Errorf("lazy %v (%v), want all", lazy, errs)
		}
		time.Sleep(2 * answerTTL)
	})
}
