//go:build e2e

package hub_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"lighter/hub"
	"lighter/hub/retention"
	"lighter/wire"
)

// The clock of a hub with SQLite, which is also the database's, jumps between two starts. What the
// process has accepted completes, nothing that an image needs is deleted, and the tags that are
// pushed after the jump are the newest.
func TestClockJumpsBetweenStarts(t *testing.T) {
	for _, jump := range [][2]time.Duration{{0, 10 * time.Minute}, {10 * time.Minute, 0}} {
		t.Run(fmt.Sprintf("from %s to %s", jump[0], jump[1]), func(t *testing.T) {
			t.Parallel()
			configure := func(c *hub.Config) {
				c.GC.EveryMinutes, c.GC.DelayMinutes = 6, 5 // less than the jump
				c.RetentionMaxPercent = 100
				c.Retention = []retention.Rule{
					{Repositories: []string{"old"}, KeepTags: []retention.Keep{{Newest: 1}}},
					{Repositories: []string{"days"}, KeepTags: []retention.Keep{{PushedWithinDays: 1}}},
				}
			}
			s := scene{configure: configure}
			c := sceneConfig(t, s, setupSQLite)
			start := func(by time.Duration) *process { return startProcess(t, c, clockEnv+"="+by.String()) }
			p, undisturbed := start(jump[0]), startProcess(t, sceneConfig(t, s, setupSQLite))
			before := func(h *process) {
				h.pushReady("old:1", image(lowerTar, layerOfRound(1, 1)))
				h.pushReady("days:1", image(lowerTar, layerOfRound(2, 1)))
				h.pushReady("gone:1", image(lowerTar, layerOfRound(3, 1)))
				h.remove("gone:1")
			}
			before(p)
			before(undisturbed)
			// The process is killed while one job runs, and others are queued.
			r := startRegistry(t, image(lowerTar, layerOfRound(4, 1)))
			held, release := r.holdBlobs(t)
			go func() { // its process is killed
				_, _ = p.client.Add(context.Background(), wire.Add{Source: r.source(), Name: "added:1"}, silent)
			}()
			awaitHeld(t, held)
			p.kill()
			release()
			p = start(jump[1])
			for what, at := range map[string]time.Duration{"process": p.clock(), "database": p.databaseClock()} {
				if by := at - time.Duration(time.Now().UnixNano()) - jump[1]; by.Abs() > time.Minute {
					t.Fatalf("the clock of the %s is wrong by %s more than %s", what, by, jump[1])
				}
			}
			after := func(h *process) {
				h.wantReady("added:1", r.manifest)
				h.pushReady("old:2", image(lowerTar, layerOfRound(1, 2)))
				h.pushReady("days:2", image(lowerTar, layerOfRound(2, 2)))
				h.idle()
				for range 2 {
					job, err := h.client.ApplyRetention(t.Context(), nil)
					if err == nil {
						err = h.ended(t.Context(), job.N)
					}
					if err = errors.Join(err, h.collectOnce(t.Context())); err != nil {
						t.Error(err)
					}
				}
				for _, name := range []string{"days:1", "days:2", "added:1"} {
					h.fetchTree(h.ready(name).Chain)
				}
				wantConsistent(t, h.testHub)
			}
			after(p)
			if _, err := undisturbed.add(wire.Add{Source: r.source(), Name: "added:1"}); err != nil {
				t.Fatal(err)
			}
			after(undisturbed)
			if got, want := p.trees(), undisturbed.trees(); !maps.Equal(got, want) {
				t.Errorf("images %v, want %v", got, want)
			}
			for _, j := range p.allJobs() {
				if j.State == wire.JobFailed || j.State == wire.JobCancelled {
					t.Errorf("job %s %s is %s: %s", j.Kind, j.Key, j.State, j.Error)
				}
			}
		})
	}
}

// databaseClock returns the time of the hub's database, since 1970.
func (p *process) databaseClock() time.Duration {
	p.t.Helper()
	job, err := p.client.Collect(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	return time.Duration(job.Created.UnixNano())
}
