//go:build e2e

package hub_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/hub"
	"lighter/test/testkit/postgres"
	"lighter/wire"
)

// One in cutOf transactions, at random, gets no answer to its COMMIT.
const cutOf = 20

// The answers to the COMMIT of some transactions are cut off, so the hub does not know whether they
// have committed. In the end it has the same as if all answers had arrived.
func TestAnswersOfCommitsAreCut(t *testing.T) {
	t.Parallel()
	const images = 4
	var mu sync.Mutex
	random, cutting := rand.New(rand.NewPCG(1, 2)), atomic.Bool{}
	c := hubConfig(t)
	c.GC = hub.GC{}
	proxy := postgres.StartProxy(t, c.Catalog, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(cutOf) == 0 && cutting.Load()
	})
	c.Catalog = proxy.Source
	s := cutScene(t)
	p := startProcess(t, c)
	cutting.Store(true)
	for round := range images {
		s.prepare(p, round)
		work(t, s, round, p)
	}
	cutting.Store(false)
	if proxy.Cuts() < images {
		t.Errorf("%d answers were cut off, want at least %d", proxy.Cuts(), images)
	}
	t.Logf("%d answers were cut off", proxy.Cuts())
	undisturbed := hubConfig(t)
	undisturbed.GC = hub.GC{}
	wantUndisturbed(t, s, images-1, undisturbed, p)
}

// cutScene adds an image, reports a start of it, removes the previous round's image, and collects.
func cutScene(t *testing.T) scene {
	all := map[string]scene{}
	for _, s := range scenes(t) {
		all[s.name] = s
	}
	remove := all["remove"]
	return scene{name: "all", prepare: all["add"].prepare, parts: []scene{all["add"], all["start"], all["verify"], {
		ask: func(ctx context.Context, h *process, round int) error { return remove.ask(ctx, h, round-1) },
		done: func(ctx context.Context, h *process, round int) error {
			return remove.done(ctx, h, round-1)
		},
	}, all["collect"]}}
}

// smallDisk mounts a file system of 48 MiB at a directory until the test ends. fill fills it up.
// free removes the file that fills it.
func smallDisk(t *testing.T, dir string) (fill func() (free func())) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=48m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return func() func() {
		t.Helper()
		ballast := filepath.Join(dir, "ballast")
		file, err := os.Create(ballast)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for err == nil {
			_, err = file.Write(make([]byte, 4096))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		return func() {
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// While one of the hub's disks is full, ready images are served. Accepted images become ready when
// there is room again.
func TestDiskIsFull(t *testing.T) {
	for _, setup := range []string{setupSQLite, setupPostgres} {
		t.Run(setup, func(t *testing.T) {
			t.Parallel()
			c := sceneConfig(t, scene{}, setup)
			fills := map[string]func() func(){"root": smallDisk(t, c.Root)}
			if setup == setupPostgres {
				fills["bucket"] = smallDisk(t, objectsDir(c))
			}
			p, undisturbed := startProcess(t, c), startProcess(t, sceneConfig(t, scene{}, setup))
			before := image(lowerTar)
			p.pushReady("before:1", before)
			undisturbed.pushReady("before:1", before)
			chain := p.ready("before:1").Chain
			round := 0
			for disk, fill := range fills {
				round++
				name := disk + ":1"
				r := startRegistry(t, image(lowerTar, layerOfRound(round, 1)))
				held, release := r.holdBlobs(t)
				added := p.adding(wire.Add{Source: r.source(), Name: name})
				awaitHeld(t, held)
				free := fill()
				release()
				for range 20 { // meanwhile, attempts to ingest the image fail
					p.fetchTree(chain)
					time.Sleep(100 * time.Millisecond)
				}
				free()
				if err := <-added; err != nil {
					t.Errorf("disk %s: the client that waits for the image got %v, want no error", disk, err)
				}
				p.wantReady(name, r.manifest)
				if _, err := undisturbed.add(wire.Add{Source: r.source(), Name: name}); err != nil {
					t.Fatal(err)
				}
			}
			p.idle()
			undisturbed.idle()
			wantSame(t, p.testHub, undisturbed.testHub)
			p.wantClean("in the end", "before:1")
		})
	}
}

// On a disk that other programs have filled, images can be removed, and a collection frees their
// bytes, also after a restart of the hub.
func TestRemovalOnAFullDisk(t *testing.T) {
	t.Parallel()
	c := sceneConfig(t, scene{}, setupSQLite)
	c.GC = hub.GC{}
	c.DiskReserve = 32 << 20
	fill := smallDisk(t, c.Root)
	p := startProcess(t, c)
	for round := range 3 {
		p.pushReady(roundName(round, 1), image(layerOfRound(round, 1)))
	}
	p.idle()
	spare := filepath.Join(c.Root, "spare")
	for range 600 {
		if info, err := os.Stat(spare); err == nil && info.Size() == int64(c.DiskReserve/16) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	for round := range 2 {
		free := fill()
		if round == 1 {
			p.kill()
			p = startProcess(t, c)
		}
		p.remove(roundName(round, 1))
		job, err := p.client.Collect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		done, err := p.client.AwaitCollection(t.Context(), job.N, silent)
		if err != nil || done.Collection.Bytes < 100_000 {
			t.Errorf("round %d: collected %+v, %v, want at least 100,000 bytes", round, done.Collection, err)
		}
		free()
	}
	p.fetchTree(p.ready(roundName(2, 1)).Chain)
	p.wantClean("in the end", roundName(2, 1))
}

// A hub has two processes, and the clock of one of them is wrong. Neither process takes over the
// other's jobs, and nothing is deleted too early.
func TestClockOfOneProcessIsWrong(t *testing.T) {
	for _, by := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			c := hubConfig(t)
			c.GC.DelayMinutes = 5 // less than the difference of the clocks
			a := startProcess(t, c)
			b := startProcess(t, further(t, c), clockEnv+"="+by.String())
			if got := b.clock() - a.clock(); got < by-time.Minute || got > by+time.Minute {
				t.Fatalf("the clock differs by %s, want %s", got, by)
			}
			undisturbed := startProcess(t, hubConfig(t))
			one := func(round int, h, other *process) {
				name := roundName(round, 1)
				h.push(name, imageOfRound(round, 1))
				other.ready(name)
				if err := sendTrace(t.Context(), other, round); err != nil {
					t.Error(err)
				}
				if round%3 == 0 {
					h.remove(name)
				}
			}
			var all sync.WaitGroup
			for round := range 8 {
				pair := [][2]*process{{a, b}, {b, a}}[round%2]
				all.Go(func() { one(round, pair[0], pair[1]) })
			}
			all.Wait()
			for round := range 8 {
				one(round, undisturbed, undisturbed)
			}
			for _, h := range []*process{a, b, undisturbed} {
				h.idle()
				job, err := h.client.Collect(t.Context())
				if err == nil {
					_, err = h.client.AwaitCollection(t.Context(), job.N, silent)
				}
				if err != nil {
					t.Error(err)
				}
			}
			ended, err := a.client.Jobs(t.Context(), true)
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range ended {
				if j.Attempts > 1 || j.State != wire.JobDone {
					t.Errorf("job %s %s: %s after %d attempts, want one: %s",
						j.Kind, j.Key, j.State, j.Attempts, j.Error)
				}
			}
			wantSame(t, a.testHub, undisturbed.testHub)
		})
	}
}
