//go:build e2e

package hub_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/hub"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/retention"
	"lighter/test/testkit/tarball"
	"lighter/wire"
	"lighter/wire/client"
)

// scene is some work of a hub. Tests repeat it in rounds: each round has images of its own.
type scene struct {
	name string
	kind string // jobs of this kind have steps that the tests stop at, beside those of requests and stores
	// configure changes the configuration.
	configure func(c *hub.Config)
	// accepts are the kinds of the jobs that requests of the work add. If a request gets no answer,
	// the hub has accepted it if it has such a job.
	accepts []string
	// prepare pushes the images that the work needs, and damages or removes some.
	prepare func(h *process, round int)
	// ask sends the requests of the work to one of the processes. A request that the hub has not
	// accepted is repeated, as clients do.
	ask func(ctx context.Context, h *process, round int) error
	// done returns an error unless the hub has completed the accepted work. If done is nil, the
	// states of the jobs show that.
	done func(ctx context.Context, h *process, round int) error
	// loses says that prepare deletes all objects. A periodic sweep that runs meanwhile refuses to
	// repair that many.
	loses bool
	// parts are scenes that are played one after the other in each round, instead of ask and done.
	parts []scene
}

// scenes returns a scene for each kind of work.
func scenes(t *testing.T) []scene {
	sources := map[int]*fakeRegistry{}
	return []scene{{
		name: "add", kind: "image",
		prepare: func(_ *process, round int) {
			if sources[round] == nil {
				sources[round] = startRegistry(t, imageOfRound(round, 1))
			}
		},
		accepts: []string{"image"},
		ask: func(ctx context.Context, h *process, round int) error {
			_, err := h.client.Add(ctx, wire.Add{Source: sources[round].source(), Name: roundName(round, 1)}, silent)
			return err
		},
		done: func(ctx context.Context, h *process, round int) error {
			return h.has(ctx, roundName(round, 1), imageOfRound(round, 1))
		},
	}, {
		name: "push", kind: "name",
		accepts: []string{"image"},
		prepare: func(h *process, round int) {
			h.pushReady(roundName(round, 1), imageOfRound(round, 1))
			h.push(roundName(round, 2), imageOfRound(round, 2)) // so that only the manifest is left to be pushed
			h.ready(roundName(round, 2))
		},
		ask: func(ctx context.Context, h *process, round int) error {
			manifest, _, _ := imageOfRound(round, 2).build()
			b, err := json.Marshal(manifest)
			if err != nil {
				return err
			}
			repository, _, _ := strings.Cut(roundName(round, 1), ":")
			req, err := http.NewRequestWithContext(ctx, http.MethodPut, h.url+"/v2/"+repository+"/manifests/1",
				strings.NewReader(string(b)))
			if err != nil {
				return err
			}
			req.Header.Set("Content-Type", manifest.MediaType)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusCreated {
				return fmt.Errorf("push: %s, want 201", res.Status)
			}
			return nil
		},
		done: func(ctx context.Context, h *process, round int) error {
			return h.has(ctx, roundName(round, 1), imageOfRound(round, 2))
		},
	}, {
		name: "start", kind: "layout",
		accepts: []string{"layout"},
		prepare: func(h *process, round int) { h.pushReady(roundName(round, 1), imageOfRound(round, 1)) },
		ask:     sendTrace,
		done:    wantRecorded,
	}, {
		name: "recompress", kind: "recompress",
		accepts: []string{"layout"},
		prepare: func(h *process, round int) { h.pushReady(roundName(round, 1), imageOfRound(round, 1)) },
		ask:     sendTrace,
		done:    wantRecorded,
	}, {
		name: "verify", kind: "verify",
		accepts: []string{"verify"},
		prepare: func(h *process, round int) { h.pushReady(roundName(round, 1), imageOfRound(round, 1)) },
		ask: func(ctx context.Context, h *process, round int) error {
			last, err := h.client.Verify(ctx, roundName(round, 1), silent)
			if err == nil && len(last.Problems) > 0 {
				t.Errorf("verify: problems %q, want none", last.Problems)
			}
			return err
		},
	}, {
		name: "remove", kind: "name",
		prepare: func(h *process, round int) { h.pushReady(roundName(round, 1), imageOfRound(round, 1)) },
		ask: func(ctx context.Context, h *process, round int) error {
			if images, err := h.client.Images(ctx, roundName(round, 1)); err != nil || len(images) == 0 {
				return err
			}
			return h.client.Remove(ctx, roundName(round, 1))
		},
		done: func(ctx context.Context, h *process, round int) error { return h.hasOnly(ctx, round) },
	}, {
		name: "collect", kind: "collect",
		accepts:   []string{"collect"},
		configure: func(c *hub.Config) { c.GC = hub.GC{} }, // nothing stays
		prepare: func(h *process, round int) { // two images are removed: one pack is deleted, one is rewritten
			first := uint64(2000 + round*30)
			h.pushReady(roundName(round, 1), image(layer(first, first+1)))
			h.pushReady(roundName(round, 2), image(layer(seeds(first+2, first+20)...)))
			h.pushReady(roundName(round, 3), image(layer(first+2, first+3)))
			h.remove(roundName(round, 1))
			h.remove(roundName(round, 2))
		},
		ask: func(ctx context.Context, h *process, _ int) error {
			if err := h.collectOnce(ctx); err != nil {
				return err
			}
			return h.collectOnce(ctx) // the second collection deletes rewritten packs
		},
		done: func(ctx context.Context, h *process, _ int) error { // perhaps only the first collection was accepted
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			for {
				err := h.collectOnce(ctx)
				if refused := (*client.Error)(nil); !errors.As(err, &refused) ||
					refused.Status != http.StatusServiceUnavailable {
					return err
				}
			}
		},
	}, {
		name: "repair", kind: "fsck", loses: true,
		accepts: []string{"fsck"},
		prepare: func(h *process, round int) {
			h.pushReady(roundName(round, 1), image(layerOfRound(round, 1)))
			h.idle()
			h.loseObjects()
			h.storeUnknown(objects.PackKey(chunk.Sum([]byte(fmt.Sprint(round)))), 25*time.Hour)
		},
		ask: func(ctx context.Context, h *process, _ int) error {
			last, err := h.client.Fsck(ctx, wire.Fsck{Repair: true}, silent)
			if err == nil && last.Check.Left() != 0 {
				err = fmt.Errorf("not repaired: %s", findings(*last.Check))
			}
			return err
		},
		done: func(ctx context.Context, h *process, _ int) error { return h.isRepaired(ctx) },
	}, {
		name: "retention", kind: "retention",
		accepts: []string{"retention"},
		configure: func(c *hub.Config) {
			c.RetentionMaxPercent = 100
			c.Retention = []retention.Rule{{Repositories: []string{"**"}, KeepTags: []retention.Keep{{Newest: 1}}}}
		},
		prepare: func(h *process, round int) {
			for n := range 3 {
				h.pushReady(roundName(round, n), image(tarball.Of(tarball.File("f", noise(uint64(round*4+n), 1000)))))
			}
		},
		ask: func(ctx context.Context, h *process, _ int) error {
			job, err := h.client.ApplyRetention(ctx, nil)
			if err != nil {
				return err
			}
			return h.ended(ctx, job.N)
		},
		done: func(ctx context.Context, h *process, round int) error {
			return h.hasOnly(ctx, round, roundName(round, 2))
		},
	}, {
		name: "sweep", kind: "sweep",
		accepts: []string{"sweep"},
		prepare: func(h *process, round int) {
			tree := h.pushReady(roundName(round, 1), image(layerOfRound(round, 1))).Tree
			h.idle()
			if err := os.Remove(filepath.Join(objectsDir(h.config), "indexes", tree+".zst")); err != nil {
				t.Fatal(err)
			}
			h.storeUnknown(objects.PackKey(chunk.Sum([]byte(fmt.Sprint(round)))), 25*time.Hour)
		},
		ask: func(ctx context.Context, h *process, _ int) error { return h.check(ctx, "sweep") },
		done: func(ctx context.Context, h *process, round int) error {
			return h.isComplete(ctx, round, objects.PackKey(chunk.Sum([]byte(fmt.Sprint(round)))))
		},
	}, {
		name: "scrub", kind: "scrub",
		accepts:   []string{"scrub"},
		configure: func(c *hub.Config) { c.ScrubDays = 1 }, // a scrub is a few jobs
		prepare: func(h *process, round int) {
			tree := h.pushReady(roundName(round, 1), image(layerOfRound(round, 1))).Tree
			h.idle()
			damage(t, filepath.Join(objectsDir(h.config), "indexes", tree+".zst"))
		},
		ask: func(ctx context.Context, h *process, _ int) error { return h.check(ctx, "scrub") },
		done: func(ctx context.Context, h *process, _ int) error { // further scrubs read the remaining objects
			for range 8 {
				last, err := h.client.Fsck(ctx, wire.Fsck{Deep: true}, silent)
				if err != nil || last.Check.Left() == 0 {
					return err
				}
				if err := h.check(ctx, "scrub"); err != nil {
					return err
				}
			}
			return errors.New("an object is still damaged")
		},
	}, {
		name:    "report",
		prepare: func(h *process, round int) { h.pushReady(roundName(round, 1), imageOfRound(round, 1)) },
		ask: func(ctx context.Context, h *process, round int) error {
			images, err := h.client.Images(ctx, roundName(round, 1))
			if err != nil || len(images) != 1 {
				return errors.Join(err, fmt.Errorf("%s has %d images, want 1", roundName(round, 1), len(images)))
			}
			tree, err := chunk.ParseID(images[0].Tree)
			if err != nil {
				return err
			}
			_, err = h.client.SendHeld(ctx, wire.Held{Holder: strings.Repeat(fmt.Sprintf("%02x", round), 16),
				Kind: wire.HolderNode, Name: "node", Trees: []chunk.ID{tree}})
			return err
		},
		done: func(ctx context.Context, h *process, round int) error {
			holders, err := h.client.Holders(ctx, roundName(round, 1))
			if err == nil && (len(holders) != 1 || holders[0].Trees != 1) {
				err = fmt.Errorf("holders %+v, want one", holders)
			}
			return err
		},
	}}
}

// collectOnce starts a collection and waits for its end.
func (p *process) collectOnce(ctx context.Context) error {
	job, err := p.client.Collect(ctx)
	if err == nil {
		_, err = p.client.AwaitCollection(ctx, job.N, silent)
	}
	return err
}

// check adds the job of a sweep or scrub, as the hub does periodically, and waits for its end.
func (p *process) check(ctx context.Context, kind string) error {
	c, err := catalog.Open(ctx, catalog.Place{Source: catalogOf(p.config)})
	if err != nil {
		return err
	}
	defer c.Close()
	n, err := c.Jobs.Add(ctx, catalog.Job{Kind: kind, Key: "all objects"}, 0)
	if err != nil {
		return err
	}
	return p.ended(ctx, n)
}

// sendTrace reports a start of a round's image.
func sendTrace(ctx context.Context, h *process, round int) error {
	images, err := h.client.Images(ctx, roundName(round, 1))
	if err != nil || len(images) != 1 {
		return errors.Join(err, fmt.Errorf("%s has %d images, want 1", roundName(round, 1), len(images)))
	}
	tree, err := chunk.ParseID(images[0].Tree)
	if err != nil {
		return err
	}
	reads := []trace.Read{{Offset: 0, Length: 64 << 10}, {Offset: 128 << 10, Length: 32 << 10}}
	return h.client.SendTrace(ctx, tree, trace.Trace{Tree: tree, Reads: reads})
}

// layerOfRound returns a layer that no other round has, with small and large files.
func layerOfRound(round, n int) []byte {
	var entries []tarball.Item
	for i := range uint64(4) {
		entries = append(entries, tarball.File(fmt.Sprintf("round-%d/%d", round, i),
			noise(uint64(1000+round*40+n*4)+i, 40_000)))
	}
	return tarball.Of(entries...)
}

// imageOfRound returns an image with a layer that all rounds have, and one of its own.
func imageOfRound(round, n int) fakeImage { return image(lowerTar, layerOfRound(round, n)) }

func roundName(round, n int) string { return fmt.Sprintf("r%d/a:%d", round, n) }

// work does a round: it sends the requests to the processes in turn until one is accepted, and
// waits until the hub is idle.
func work(t *testing.T, s scene, round int, at ...*process) {
	t.Helper()
	for _, part := range s.parts {
		work(t, part, round, at...)
	}
	if s.ask == nil {
		return
	}
	end := time.Now().Add(2 * time.Minute)
	for n := 0; ; n++ {
		h := at[n%len(at)]
		before := h.lastJob()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		err := s.ask(ctx, h, round)
		cancel()
		if completed(t, s, round, before, err, h) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("round %d: no request was accepted within 2 minutes: %v", round, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// completed waits until the hub is idle, and reports whether it has accepted the request of a
// round: it has answered without an error, or has a job of the round with a number above before. It
// fails the test if accepted work is not done.
func completed(t *testing.T, s scene, round int, before int64, answer error, h *process) bool {
	t.Helper()
	h.idle()
	accepted := answer == nil
	for _, j := range h.allJobs() {
		if j.N <= before || s.loses && j.Kind == "sweep" {
			continue
		}
		ofRound := slices.Contains(s.accepts, j.Kind)
		accepted = accepted || ofRound
		open := j.State == wire.JobQueued || j.State == wire.JobRunning // jobs of other kinds may just become due
		if j.State != wire.JobDone && (ofRound || !open) {
			t.Errorf("round %d: job %d (%s, %s) is %s, want it done: %s", round, j.N, j.Kind, j.Key, j.State, j.Error)
		}
	}
	if accepted && s.done != nil {
		if err := s.done(t.Context(), h, round); err != nil {
			t.Errorf("round %d: accepted (answer: %v), but not done: %v", round, answer, err)
		}
	}
	return accepted
}

// allJobs returns the hub's open jobs and the last ones that have ended.
func (p *process) allJobs() []wire.Job {
	p.t.Helper()
	open, err := p.client.Jobs(p.t.Context(), false)
	if err != nil {
		p.t.Fatal(err)
	}
	ended, err := p.client.Jobs(p.t.Context(), true)
	if err != nil {
		p.t.Fatal(err)
	}
	return append(open, ended...)
}

// lastJob returns the highest number of the hub's jobs.
func (p *process) lastJob() (last int64) {
	p.t.Helper()
	for _, j := range p.allJobs() {
		last = max(last, j.N)
	}
	return last
}

// scenesAtOnce bounds the scenes that are played at the same time. Each has two or three processes.
const scenesAtOnce = 4

// eachScene plays all scenes, up to scenesAtOnce at the same time: a scene mostly waits for its
// processes.
func eachScene(t *testing.T, setup string, play func(t *testing.T, s scene, c hub.Config)) {
	var all errgroup.Group
	all.SetLimit(scenesAtOnce)
	for i := range scenes(t) {
		all.Go(func() error {
			name := scenes(t)[i].name
			t.Run(setup+", "+name, func(t *testing.T) {
				s := scenes(t)[i]
				play(t, s, sceneConfig(t, s, setup))
			})
			return nil
		})
	}
	_ = all.Wait() // always nil
}

const (
	setupSQLite   = "SQLite"
	setupBucket   = "SQLite and S3"
	setupPostgres = "PostgreSQL" // and S3
)

// sceneConfig returns the configuration of a new hub.
func sceneConfig(t *testing.T, s scene, setup string) hub.Config {
	t.Helper()
	c := hubConfig(t)
	if setup != setupPostgres {
		c.Catalog = ""
	}
	if setup == setupSQLite {
		c.Bucket = ""
	}
	if s.configure != nil {
		s.configure(&c)
	}
	return c
}
