//go:build e2e

package hub_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/hub"
	"lighter/hub/objects"
	"lighter/hub/retention"
	"lighter/test/testkit/tarball"
	"lighter/wire"
)

// scene is some work of a hub. It is done once for each of its steps, as round 1, 2, …
type scene struct {
	name string
	kind string // of jobs whose steps are looked at beside those of requests; others are of other scenes
	// configure changes the configuration.
	configure func(c *hub.Config)
	// prepare makes what the work needs.
	prepare func(h *process, round int)
	// do does the work at one of the processes. It is repeated until it succeeds, as clients do.
	do func(ctx context.Context, h *process, round int) error
}

// scenes are all kinds of work.
func scenes(t *testing.T) []scene {
	sources := map[int]*fakeRegistry{}
	return []scene{{
		name: "add", kind: "image",
		prepare: func(_ *process, round int) {
			if sources[round] == nil {
				sources[round] = startRegistry(t, imageOfRound(round, 1))
			}
		},
		do: func(ctx context.Context, h *process, round int) error {
			_, err := h.client.Add(ctx, wire.Add{Source: sources[round].source(), Name: roundName(round, 1)}, silent)
			return err
		},
	}, {
		name: "push", kind: "name",
		prepare: func(h *process, round int) {
			h.pushReady(roundName(round, 1), imageOfRound(round, 1))
			h.push(roundName(round, 2), imageOfRound(round, 2)) // so that only the tag is left to be pushed
			h.ready(roundName(round, 2))
		},
		do: func(ctx context.Context, h *process, round int) error {
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
				return fmt.Errorf("push: %s", res.Status)
			}
			_, err = h.client.Add(ctx, wire.Add{Name: roundName(round, 1)}, silent)
			return err
		},
	}, {
		name: "start", kind: "layout",
		prepare: func(h *process, round int) { h.pushReady(roundName(round, 1), imageOfRound(round, 1)) },
		do:      sendTrace,
	}, {
		name: "recompress", kind: "recompress",
		prepare: func(h *process, round int) { h.pushReady(roundName(round, 1), imageOfRound(round, 1)) },
		do:      sendTrace,
	}, {
		name: "verify", kind: "verify",
		prepare: func(h *process, round int) { h.pushReady(roundName(round, 1), imageOfRound(round, 1)) },
		do: func(ctx context.Context, h *process, round int) error {
			last, err := h.client.Verify(ctx, roundName(round, 1), silent)
			if err == nil && len(last.Problems) > 0 {
				t.Errorf("problems %q", last.Problems)
			}
			return err
		},
	}, {
		name: "remove", kind: "name",
		prepare: func(h *process, round int) { h.pushReady(roundName(round, 1), imageOfRound(round, 1)) },
		do: func(ctx context.Context, h *process, round int) error {
			if images, err := h.client.Images(ctx, roundName(round, 1)); err != nil || len(images) == 0 {
				return err
			}
			return h.client.Remove(ctx, roundName(round, 1))
		},
	}, {
		name: "collect", kind: "collect",
		configure: func(c *hub.Config) { c.GC = hub.GC{} }, // nothing stays
		prepare: func(h *process, round int) { // an image of its own goes, and one whose pack is rewritten
			first := uint64(2000 + round*30)
			h.pushReady(roundName(round, 1), image(layer(first, first+1)))
			h.pushReady(roundName(round, 2), image(layer(seeds(first+2, first+20)...)))
			h.pushReady(roundName(round, 3), image(layer(first+2, first+3)))
			h.remove(roundName(round, 1))
			h.remove(roundName(round, 2))
		},
		do: func(ctx context.Context, h *process, _ int) error {
			for range 2 { // the second one drops rewritten packs
				job, err := h.client.Collect(ctx)
				if err == nil {
					_, err = h.client.AwaitCollection(ctx, job.N, silent)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}, {
		name: "repair", kind: "fsck",
		prepare: func(h *process, round int) {
			h.pushReady(roundName(round, 1), image(layerOfRound(round, 1)))
			h.idle()
			h.loseObjects()
			h.storeUnknown(objects.PackKey(chunk.Sum([]byte(fmt.Sprint(round)))), 25*time.Hour)
		},
		do: func(ctx context.Context, h *process, _ int) error {
			last, err := h.client.Fsck(ctx, wire.Fsck{Repair: true}, silent)
			if err == nil && last.Check.Left() != 0 {
				t.Errorf("not repaired: %s", findings(*last.Check))
			}
			return err
		},
	}, {
		name: "retention", kind: "retention",
		configure: func(c *hub.Config) {
			c.RetentionMaxPercent = 100
			c.Retention = []retention.Rule{{Repositories: []string{"**"}, KeepTags: []retention.Keep{{Newest: 1}}}}
		},
		prepare: func(h *process, round int) {
			for n := range 3 {
				h.pushReady(roundName(round, n), image(tarball.Of(tarball.File("f", noise(uint64(round*4+n), 1000)))))
			}
		},
		do: func(ctx context.Context, h *process, _ int) error {
			job, err := h.client.ApplyRetention(ctx, nil)
			if err != nil {
				return err
			}
			return h.ended(ctx, job.N)
		},
	}}
}

// sendTrace reports a start of a round's image, and waits for its layout and the recompression.
func sendTrace(ctx context.Context, h *process, round int) error {
	images, err := h.client.Images(ctx, roundName(round, 1))
	if err != nil || len(images) != 1 {
		return errors.Join(err, fmt.Errorf("%d images", len(images)))
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

// work does a round at one of some processes, until it succeeds and nothing is left to do.
func work(t *testing.T, s scene, round int, at ...*process) {
	t.Helper()
	end := time.Now().Add(2 * time.Minute)
	for n := 0; ; n++ {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		h := at[n%len(at)]
		err := s.do(ctx, h, round)
		cancel()
		if err == nil {
			h.idle()
			return
		}
		if time.Now().After(end) {
			t.Fatalf("round %d: %v", round, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// scenesAtOnce bounds the scenes that are played at the same time, of two or three processes each.
const scenesAtOnce = 4

// eachScene plays all scenes, some of them at the same time: they mostly wait for processes.
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
	_ = all.Wait() // there are no errors
}

const (
	setupSQLite   = "SQLite"
	setupPostgres = "PostgreSQL"
)

// sceneConfig returns the configuration of a new hub.
func sceneConfig(t *testing.T, s scene, setup string) hub.Config {
	t.Helper()
	c := hubConfig(t)
	if setup == setupSQLite {
		c.Catalog, c.Bucket = "", ""
	}
	if s.configure != nil {
		s.configure(&c)
	}
	return c
}
