package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
)

// servers is a Source of two servers: packs that begin with a 1 are those of a registry.
type servers struct {
	hub, registry UnitSource
	connects      int
}

var (
	_ Router    = (*servers)(nil)
	_ Connector = (*servers)(nil)
	_ Estimator = (*servers)(nil)
)

func (s *servers) Route(u chunk.Unit) string {
	if u.Pack[0] == 1 {
		return "registry.test"
	}
	return ""
}

func (s *servers) FetchUnit(ctx context.Context, u chunk.Unit, take func(Answer) error) error {
	if s.Route(u) != "" {
		return s.registry.FetchUnit(ctx, u, take)
	}
	return s.hub.FetchUnit(ctx, u, take)
}

func (s *servers) Fetch(ctx context.Context, ref chunk.Ref, take func(Answer) error) error {
	return s.hub.Fetch(ctx, ref, take)
}

func (s *servers) Connect(int)                              { s.connects++ }
func (s *servers) Estimate(string) (time.Duration, float64) { return 50 * time.Millisecond, 1e6 }

// ofRegistry returns a reference to the chunk in another unit, of the registry's.
func ofRegistry(ref chunk.Ref, n int) chunk.Ref {
	ref.Unit = chunk.Unit{Pack: chunk.ID{1}, N: uint32(n)}
	return ref
}

// If a server fails, background requests to it pause. Those to the other server do not.
func TestOneOfTwoServersFails(t *testing.T) {
	unit, refs := encode(t, "chunk")
	works := func(context.Context, chunk.Unit) ([]byte, error) { return unit, nil }
	fails := func(context.Context, chunk.Unit) ([]byte, error) { return nil, errors.New("503") }
	for _, which := range []string{"hub", "registry"} {
		synctest.Test(t, func(t *testing.T) {
			good, bad := &source{unit: works}, &source{unit: fails}
			s := &servers{hub: good, registry: bad}
			goodRef, badRef := at(refs[0], 1), ofRegistry(refs[0], 1)
			if which == "hub" {
				s.hub, s.registry, goodRef, badRef = bad, good, badRef, goodRef
			}
			share := NewFetcher(s, noCache{}).Share()
			stream := func(ref chunk.Ref) error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				wait, err := share.Stream(ctx, ref, 1000)
				if err == nil {
					_, err = wait(ctx)
				}
				return err
			}
			if err := share.Prefetch(t.Context(), badRef); err == nil || errors.Is(err, errFailing) {
				t.Errorf("%s: the first request: %v, want the server's error", which, err)
			}
			if err := share.Prefetch(t.Context(), badRef); !errors.Is(err, errFailing) {
				t.Errorf("%s: the second request: %v, want none", which, err)
			}
			if err := stream(badRef); !errors.Is(err, context.DeadlineExceeded) || bad.asked.Load() != 1 {
				t.Errorf("%s: a stream: %v, %d requests; want that it waits", which, err, bad.asked.Load())
			}
			if err := errors.Join(share.Prefetch(t.Context(), goodRef), stream(goodRef)); err != nil {
				t.Errorf("%s fails: the other server: %v", which, err)
			}
		})
	}
}

// Each server has an estimate of its own. Streams of one do not wait for those of another, and the
// hubs' own estimate and connections are not for registries.
func TestEstimatesOfTwoServers(t *testing.T) {
	unit, refs := encode(t, noise(100_000, 1), noise(100_000, 2))
	synctest.Test(t, func(t *testing.T) {
		newPath := func(rate float64) *path {
			return &path{rate: rate, rtt: 10 * time.Millisecond, asked: map[uint32]int{},
				answer: func(chunk.Unit) []byte { return unit }}
		}
		s := &servers{hub: newPath(10e6), registry: newPath(1e6)}
		u := NewFetcher(s, noCache{})
		type end struct {
			name string
			took time.Duration
		}
		done := make(chan end)
		for name, ref := range map[string]func(int) chunk.Ref{
			"hub":      func(n int) chunk.Ref { return at(refs[0], n) },
			"registry": func(n int) chunk.Ref { return ofRegistry(refs[0], n) },
		} {
			go func() {
				began := time.Now()
				if err := streamAll(t.Context(), u.Share(), ref, 50, len(unit)); err != nil {
					t.Error(err)
				}
				done <- end{name, time.Since(began)}
			}()
		}
		first, second := <-done, <-done
		if first.name != "hub" || first.took > 1300*time.Millisecond || second.took < 9*time.Second {
			t.Errorf("took %+v and %+v, want 1 s for the hub, and 10 s for the registry", first, second)
		}
		st := u.Stats()
		if hub, registry := st.Link.Rate, st.Registries["registry.test"].Rate; hub < 9e6 || hub > 12e6 ||
			registry < 0.9e6 || registry > 1.2e6 {
			t.Errorf("rates: %d of the hub, %d of the registry; want 1e7 and 1e6", hub, registry)
		}
		if u.link.inFlight != 0 || st.Registries["registry.test"].InFlight != 0 {
			t.Errorf("in flight in the end: %+v", st)
		}
		s.connects = 0
		share := u.Share()
		if err := streamAll(t.Context(), share, func(n int) chunk.Ref { return ofRegistry(refs[0], 100+n) }, 5,
			len(unit)); err != nil || s.connects != 0 {
			t.Errorf("%v; %d connections to the hub were opened for a registry", err, s.connects)
		}
	})
}

// Before the path to a server was measured here, the source's own estimate of its RTT counts.
func TestEstimateOfAServer(t *testing.T) {
	for _, test := range []struct {
		rtt  time.Duration
		want bool
	}{{longPrior, true}, {longPrior - 1, false}, {0, false}} {
		u := NewFetcher(&estimated{rtt: test.rtt}, noCache{})
		share := u.Share()
		for server, ref := range map[string]chunk.Ref{"registry": ofRegistry(chunk.Ref{}, 1), "": at(chunk.Ref{}, 1)} {
			want := test.want && server != ""
			if got := share.BytesPerRTT(ref.Unit); got > 0 != want {
				t.Errorf("RTT %s, server %q: %d bytes, want some: %t", test.rtt, server, got, want)
			}
		}
	}
}

// estimated has an estimate for servers with a name.
type estimated struct {
	servers
	rtt time.Duration
}

func (e *estimated) Estimate(server string) (time.Duration, float64) {
	if server == "" {
		return 0, 0
	}
	return e.rtt, 0
}

// streamAll streams units one after the other.
func streamAll(ctx context.Context, s *Share, ref func(n int) chunk.Ref, units, size int) error {
	var waits []func(context.Context) (int64, error)
	for n := range units {
		wait, err := s.Stream(ctx, ref(n), int64(size))
		if err != nil {
			return err
		}
		waits = append(waits, wait)
	}
	for _, wait := range waits {
		if _, err := wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// No more than maxRoutes servers have an estimate of their own.
func TestManyServers(t *testing.T) {
	r := routes{router: manyServers{}}
	for n := range 2 * maxRoutes {
		to := r.routeTo(flightKey{unit: chunk.Unit{Pack: chunk.ID{1}, N: uint32(n)}})
		if (to == &r.route) != (n >= maxRoutes) {
			t.Fatalf("server %d has the route without a name: %t", n, to == &r.route)
		}
	}
	if r.routeTo(flightKey{id: chunk.ID{1}}) != &r.route {
		t.Error("a chunk without a unit has a route with a name")
	}
}

type manyServers struct{}

func (manyServers) Route(u chunk.Unit) string { return fmt.Sprint(u.N) }
