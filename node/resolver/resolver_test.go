package resolver

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/wire"
)

// otherKey is a second key. Most tests do not pin it.
var otherKey = ed25519.NewKeyFromSeed([]byte(strings.Repeat("x", 32)))

// A pull asks the hub once, and fetches one index. Once the tree is cached, a pull needs no hub.
func TestOneLookupAPull(t *testing.T) {
	h := &fakeHub{answer: stack(5)}
	r, trees := newResolver(t, h)
	for n, lazy := range pull(t, r, 5) {
		if !lazy {
			t.Errorf("chain %d is not lazy", n)
		}
	}
	if len(h.asked) != 1 || h.asked[0] != chainID(0) {
		t.Errorf("asked %v, want one lookup, of the lowest chain", h.asked)
	}
	// If the tree is cached before the top is claimed, the claim calls Ensure again ("start").
	top := treeID(5).Short()
	if got := trees.takeCalls(); !slices.Equal(got, []string{"fetch " + top, "start " + top}) &&
		!slices.Equal(got, []string{"fetch " + top}) {
		t.Errorf("calls %v, want one fetch, of the top's tree", got)
	}
	// Another pull finds the top's tree cached.
	h.answer = func(context.Context, string) (*wire.Chain, error) { return nil, errors.New("the hub is gone") }
	clear(r.answers.known)
	if !claim(t, r, 5) {
		t.Error("a cached tree is not claimed without the hub")
	}
	if got := trees.takeCalls(); !slices.Equal(got, []string{"start " + top}) {
		t.Errorf("calls %v, want only a start of the top's tree", got)
	}
}

// If this machine cannot mount trees, no chain is claimed, not even one with a cached tree, and the
// hub is not asked.
func TestNoClaimIfNothingCanBeMounted(t *testing.T) {
	h := &fakeHub{answer: stack(1)}
	r, trees := newResolver(t, h)
	if !claim(t, r, 1) {
		t.Fatal("not claimed although trees can be mounted")
	}
	h.asked, trees.unable = nil, errors.New("this kernel has no EROFS")
	clear(r.answers.known)
	for n := range 2 {
		if err := claimErr(t, r, n); err == nil || !strings.Contains(err.Error(), "no EROFS") {
			t.Errorf("chain %d: error %v, want no EROFS", n, err)
		}
	}
	if len(h.asked) != 0 {
		t.Errorf("asked %v, want no lookup", h.asked)
	}
}

// The index is fetched as soon as it is clear which image is pulled. The lower chains are claimed
// once the index begins to arrive. Only the claim of the top waits for the whole index.
func TestIndexArrivesWhileChainsAreClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{answer: stack(2)})
		rest := make(chan struct{})
		trees.fetch = func(_ context.Context, _ chunk.ID, begun func()) error {
			begun()
			<-rest
			return nil
		}
		if !claim(t, r, 0) || !claim(t, r, 1) || trees.Has(treeID(2)) {
			t.Error("the chains below wait for the whole index")
		}
		claimed := false
		go func() { claimed = claim(t, r, 2) }()
		time.Sleep(4 * time.Minute) // the index arrives slowly
		if claimed {
			t.Error("the top was claimed without its tree")
		}
		close(rest)
		synctest.Wait()
		if !claimed || !trees.Has(treeID(2)) || len(trees.takeCalls()) != 1 {
			t.Error("the top was not claimed with its tree")
		}
	})
}

// If the hub does not know an image, lies or is silent, a pull of many layers soon goes on without
// the hub.
func TestPullWithoutHub(t *testing.T) {
	stall := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
	lie := func(sign func(n int) index.Statement) func(context.Context, string) (*wire.Chain, error) {
		return func(ctx context.Context, chain string) (*wire.Chain, error) {
			answer, err := stack(9)(ctx, chain)
			if err != nil {
				return nil, err
			}
			s := sign(9)
			answer.Above[len(answer.Above)-1].Statement = &s
			return answer, nil
		}
	}
	for _, c := range []struct {
		name   string
		answer func(context.Context, string) (*wire.Chain, error)
		fetch  func(context.Context, chunk.ID, func()) error
		why    string
	}{
		{name: "unknown", answer: stack(-1), why: "does not know"},
		{name: "slow and unknown", answer: func(context.Context, string) (*wire.Chain, error) {
			time.Sleep(900 * time.Millisecond)
			return nil, chunk.ErrNotFound
		}, why: "does not know"},
		{name: "silent", answer: func(ctx context.Context, _ string) (*wire.Chain, error) { return nil, stall(ctx) },
			why: "did not answer"},
		{name: "another chain", answer: func(ctx context.Context, chain string) (*wire.Chain, error) {
			return stack(9)(ctx, chainID(1))
		}, why: "about another chain"},
		{name: "another key",
			answer: lie(func(n int) index.Statement { return index.Sign(otherKey, chainID(n), treeID(n)) }),
			why:    "refused"},
		{name: "another format",
			answer: lie(func(n int) index.Statement { s := *statement(n); s.Format++; return s }), why: "refused"},
		{name: "a statement about another chain", answer: lie(func(int) index.Statement { return *statement(1) }),
			why: "refused"},
		{name: "no image", answer: func(ctx context.Context, chain string) (*wire.Chain, error) {
			answer, err := stack(9)(ctx, chain)
			if err == nil {
				answer.Above = answer.Above[:len(answer.Above)-1]
			}
			return answer, err
		}, why: "no image"},
		{name: "no index", answer: stack(9),
			fetch: func(context.Context, chunk.ID, func()) error { return chunk.ErrNotFound }, why: "not found"},
		{name: "a silent index", answer: stack(9),
			fetch: func(ctx context.Context, _ chunk.ID, _ func()) error { return stall(ctx) },
			why:   "no answer within 2s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &fakeHub{answer: c.answer}
				r, trees := newResolver(t, h)
				trees.fetch = c.fetch
				start := time.Now()
				var waited time.Duration
				for n := range 9 {
					before := time.Now()
					if err := claimErr(t, r, n); err == nil || !strings.Contains(err.Error(), c.why) {
						t.Errorf("chain %d: error %v, want %q", n, err, c.why)
					}
					waited += time.Since(before)
					time.Sleep(30 * time.Second) // its layer is downloaded
				}
				limit := lookupTimeout
				if c.fetch != nil {
					limit = silenceTimeout
				}
				if waited > limit {
					t.Errorf("the pull waited %s in all, want %s at most", waited, limit)
				}
				if len(h.asked) != 1 {
					t.Errorf("asked %d times, want once", len(h.asked))
				}
				if time.Since(start) < 4*time.Minute {
					t.Error("the test's clock did not advance")
				}
				// Once the hub answers again, the next image is lazy.
				h.answer, trees.fetch = stack(2), nil
				if got := pull(t, r, 2); !slices.Equal(got, []bool{true, true, true}) {
					t.Errorf("after the failure, lazy: %v, want all", got)
				}
			})
		})
	}
}

// Simultaneous pulls of one image share the lookup and the fetch of the index.
func TestPullsOfOneImageAskOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{answer: func(ctx context.Context, chain string) (*wire.Chain, error) {
			time.Sleep(100 * time.Millisecond)
			return stack(0)(ctx, chain)
		}}
		r, trees := newResolver(t, h)
		for range 5 {
			go claim(t, r, 0)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		fetched := slices.DeleteFunc(trees.takeCalls(),
			func(call string) bool { return call == "start "+treeID(0).Short() })
		if len(h.asked) != 1 || len(fetched) != 1 || r.states[chainID(0)].holders != 5 {
			t.Errorf("asked %d times, fetched %v, %d holders; want 1, one fetch, 5",
				len(h.asked), fetched, r.states[chainID(0)].holders)
		}
	})
}

// Layers above an image that the hub knows are not claimed, and the hub is not asked about them.
func TestUnknownLayersOnKnownOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{answer: stack(2)}
		r, _ := newResolver(t, h)
		for n, want := range []bool{true, true, true, false, false, false} {
			if got := claim(t, r, n); got != want {
				t.Errorf("chain %d: lazy %v, want %v", n, got, want)
			}
			if !want {
				time.Sleep(20 * time.Second)
			}
		}
		if len(h.asked) != 1 {
			t.Errorf("asked %d times, want once: the first answer names all chains above", len(h.asked))
		}
	})
}

func TestImageThatWasAddedIsLazySoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{answer: stack(-1)}
		r, _ := newResolver(t, h)
		if first, second := claim(t, r, 0), claim(t, r, 0); first || second || len(h.asked) != 1 {
			t.Errorf("claimed %v and %v, asked %d times; want unclaimed and one lookup", first, second, len(h.asked))
		}
		h.answer = stack(1)
		time.Sleep(unknownTTL)
		if !claim(t, r, 0) || !claim(t, r, 1) {
			t.Error("an image that was added is not lazy")
		}
	})
}

// After the fetch of an index has failed, no pull asks the hub for hubPause.
func TestFailedHubIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{answer: stack(1)}
		r, trees := newResolver(t, h)
		trees.fetch = func(ctx context.Context, _ chunk.ID, _ func()) error { <-ctx.Done(); return context.Cause(ctx) }
		claim(t, r, 0)
		h.asked, trees.calls = nil, nil
		start := time.Now()
		for _, n := range []int{1, 10, 11, 12} { // 1 was in the hub's answer
			_, _ = r.Claim(t.Context(), Request{Chain: chainID(n)}) // only the calls that it makes count
		}
		if len(h.asked)+len(trees.takeCalls()) != 0 || time.Since(start) > 0 {
			t.Errorf("asked %v, waited %s; want neither", h.asked, time.Since(start))
		}
		trees.fetch = nil
		time.Sleep(hubPause)
		if !claim(t, r, 0) {
			t.Error("the hub is not asked after the pause")
		}
	})
}

// After the fetch of an index has failed, pulls ask the other sources, and do not wait for the hub.
// What the hub knew before does not keep them from that.
func TestOtherSourcesWhileTheHubFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		image, other := newImage("app", "a", "b"), newImage("other", "x", "y")
		files := directory(t.TempDir())
		for _, i := range []fakeImage{image, other} {
			files.add(t, i.manifest, i.answer(t))
		}
		r, h, trees := newTrusting(t, knowing(t, image, other))
		r.config.Answerers = append(r.config.Answerers, named{files, "the tables", nil})
		r.answers.others = true
		isDown := true
		trees.fetch = func(ctx context.Context, tree chunk.ID, _ func()) error {
			if !isDown {
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}
		known := other.from(other.repositories[0])
		known.Chain = other.chains(t)[0]
		if err := r.Allow(t.Context(), known); err != nil {
			t.Fatal(err)
		}
		if lazy, errs := claims(t, r, image.chains(t), image.from("registry.test/app")); slices.Contains(lazy, true) {
			t.Fatalf("an image whose index does not arrive is lazy: %v", errs)
		}
		isDown, h.manifests = false, nil
		time.Sleep(unknownTTL)
		start := time.Now()
		for _, i := range []fakeImage{other, image} {
			lazy, errs := claims(t, r, i.chains(t), i.from(i.repositories[0]))
			if slices.Contains(lazy, false) || !trees.Has(i.tree()) {
				t.Errorf("%v: lazy %v: %v", i.repositories, lazy, errs)
			}
		}
		if len(h.manifests) > 0 || time.Since(start) > 0 {
			t.Errorf("the hub was asked about %v; waited %s", h.manifests, time.Since(start))
		}
	})
}

// After a failure of this machine's disk, other pulls still ask the hub.
func TestLocalFailureIsNotTheHubs(t *testing.T) {
	full := func(context.Context, chunk.ID, func()) error {
		return fmt.Errorf("fetch index: %w", &fs.PathError{Op: "write", Path: "map", Err: unix.ENOSPC})
	}
	for name, fail := range map[string]func(r *Resolver, trees *fakeTrees) error{
		"the statement cannot be written": func(r *Resolver, _ *fakeTrees) error { return os.RemoveAll(r.dir) },
		"the index cannot be written":     func(_ *Resolver, trees *fakeTrees) error { trees.fetch = full; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &fakeHub{answer: stack(1)}
				r, trees := newResolver(t, h)
				if err := fail(r, trees); err != nil {
					t.Fatal(err)
				}
				if claim(t, r, 0) {
					t.Error("a chain was claimed")
				}
				claim(t, r, 10) // unknown: only its lookup counts
				if len(h.asked) != 2 || r.Unanswered() != 0 {
					t.Errorf("asked %d times, %d unanswered; want 2 and 0", len(h.asked), r.Unanswered())
				}
				time.Sleep(2 * answerTTL)
			})
		})
	}
}

// The common base of several images is claimed before it is clear which image is pulled. After that
// the pull needs the hub, and waits for it although it is slow.
func TestBaseOfSeveralImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{answer: func(_ context.Context, chain string) (*wire.Chain, error) {
			if chain != chainID(0) {
				return nil, chunk.ErrNotFound
			}
			return &wire.Chain{Link: wire.Link{Chain: chain}, Complete: true, Above: []wire.Link{
				{Chain: chainID(1), Parent: chainID(0), Statement: statement(1)},
				{Chain: chainID(7), Parent: chainID(0), Statement: statement(7)},
			}}, nil
		}}
		r, trees := newResolver(t, h)
		trees.fetch = func(ctx context.Context, _ chunk.ID, _ func()) error {
			select {
			case <-time.After(5 * time.Second):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if !claim(t, r, 0) || len(trees.takeCalls()) != 0 {
			t.Error("the base is not claimed, or an index was fetched")
		}
		if !claim(t, r, 1) || !trees.Has(treeID(1)) || trees.Has(treeID(7)) {
			t.Error("the top is not claimed with its tree")
		}
	})
}

// If the image has layers above a chain, the index of the chain itself is fetched only if the hub
// knows no image above it.
func TestMoreLayersAbove(t *testing.T) {
	base := Request{Chain: chainID(0), MoreAbove: true}
	both := func(_ context.Context, chain string) (*wire.Chain, error) {
		return &wire.Chain{Link: wire.Link{Chain: chain, Statement: statement(0)}, Complete: true,
			Above: []wire.Link{{Chain: chainID(1), Parent: chain, Statement: statement(1)}}}, nil
	}
	for want, answer := range map[chunk.ID]func(context.Context, string) (*wire.Chain, error){
		treeID(1): both, treeID(0): stack(0),
	} {
		r, trees := newResolver(t, &fakeHub{answer: answer})
		r.Hold(chainID(0))
		if _, err := r.Claim(t.Context(), base); err != nil {
			t.Error("not claimed:", err)
		}
		if got := trees.takeCalls(); !slices.Equal(got, []string{"fetch " + want.Short()}) {
			t.Errorf("calls %v, want tree %s fetched", got, want.Short())
		}
		if _, err := r.Claim(t.Context(), base); err != nil {
			t.Error("not claimed again:", err)
		}
		if got := trees.takeCalls(); len(got) != 0 {
			t.Errorf("calls %v, want none: no container will start from the base alone", got)
		}
	}
}

// Mount fetches the tree of a chain that was claimed without one. It needs the hub only for that.
func TestMountOfAClaim(t *testing.T) {
	h := &fakeHub{answer: stack(3)}
	h.tree = func(context.Context, string) (*index.Statement, error) { return statement(1), nil }
	r, trees := newResolver(t, h)
	pull(t, r, 1)
	dir, err := r.Mount(t.Context(), chainID(1))
	if err != nil || dir != "/m/"+treeID(1).Short() || !trees.Has(treeID(1)) {
		t.Fatalf("mounted at %q, error %v; want the tree of chain 1", dir, err)
	}
	h.tree = func(context.Context, string) (*index.Statement, error) { return nil, errors.New("gone") }
	if _, err := r.Mount(t.Context(), chainID(1)); err != nil {
		t.Errorf("mount of a cached tree without the hub: %v", err)
	}
	if _, err := r.Mount(t.Context(), chainID(0)); err == nil || !strings.Contains(err.Error(), chainID(0)) {
		t.Errorf("mount of a claimed chain without the hub: %v, want an error that names it", err)
	}
	h.tree = func(context.Context, string) (*index.Statement, error) {
		s := index.Sign(otherKey, chainID(0), treeID(0))
		return &s, nil
	}
	if _, err := r.Mount(t.Context(), chainID(0)); err == nil || !strings.Contains(err.Error(), "refused") ||
		trees.Has(treeID(0)) {
		t.Errorf("mount by a forged statement: %v, want that it is refused", err)
	}
}

// Mount returns in bounded time even if a hub never ends its answer, because containerd's garbage
// collector waits for Mount.
func TestMountIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{answer: stack(1), tree: func(ctx context.Context, _ string) (*index.Statement, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		r, _ := newResolver(t, h)
		pull(t, r, 0)
		start := time.Now()
		_, err := r.Mount(context.Background(), chainID(0))
		if err == nil || time.Since(start) != treeTimeout {
			t.Errorf("error %v after %s, want one after %s", err, time.Since(start), treeTimeout)
		}
		h.tree = func(context.Context, string) (*index.Statement, error) { return statement(0), nil }
		r.trees.(*fakeTrees).fetch = func(ctx context.Context, _ chunk.ID, begun func()) error {
			begun()
			<-ctx.Done()
			return context.Cause(ctx)
		}
		start = time.Now()
		if _, err := r.Mount(context.Background(), chainID(0)); err == nil || time.Since(start) != indexTimeout {
			t.Errorf("error %v after %s, want one after %s", err, time.Since(start), indexTimeout)
		}
	})
}

func TestRefusalIsInTheLog(t *testing.T) {
	var log strings.Builder
	forged := index.Sign(otherKey, chainID(0), treeID(0))
	h := &fakeHub{answer: func(_ context.Context, c string) (*wire.Chain, error) {
		return &wire.Chain{Link: wire.Link{Chain: c, Statement: &forged}, Complete: true}, nil
	}}
	r := restart(t, t.TempDir(), h, &fakeTrees{t: t, onDisk: map[chunk.ID]bool{}}, slog.NewTextHandler(&log, nil))
	claim(t, r, 0)
	if !strings.Contains(log.String(), "WARN") || !strings.Contains(log.String(), "refused") {
		t.Errorf("log %q, want a warning that a statement was refused", log.String())
	}
}

// A chain above the top of an image is claimed only if a statement about it, or about a chain above
// it, was verified: otherwise no tree could be mounted for it.
func TestChainsWithoutAStatementAreNotClaimed(t *testing.T) {
	h := &fakeHub{answer: func(ctx context.Context, chain string) (*wire.Chain, error) {
		answer, err := stack(2)(ctx, chain)
		if err != nil {
			return nil, err
		}
		answer.Statement = statement(0)
		forged := index.Sign(otherKey, chainID(2), treeID(2))
		answer.Above[len(answer.Above)-1].Statement = &forged
		return answer, nil
	}}
	r, _ := newResolver(t, h)
	if got, want := pull(t, r, 2), []bool{true, false, false}; !slices.Equal(got, want) {
		t.Errorf("lazy %v, want %v", got, want)
	}
}
