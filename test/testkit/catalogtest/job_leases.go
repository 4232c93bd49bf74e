package catalogtest

import (
	"errors"
	"testing"

	"lighter/hub/catalog"
	"lighter/wire"
)

// When a lease has ended, another worker gets the job, and the first worker can change nothing.
func testLeases(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	addJob(t, c, catalog.Job{Kind: kind, Key: "a"}, 0)
	first := claim(t, c, "x", "a")
	must(t, errorOf(c.Jobs.Extend(ctx, first.Lease(), long, []byte("half"))))
	if open, err := c.Jobs.Open(ctx, kind, "a"); err != nil || string(open.Progress) != "half" {
		t.Errorf("the open job: got %+v (%v), want the progress half", open, err)
	}
	wantNoJob(t, c, slots)
	lose(t, c, first)
	second := claim(t, c, "y", "a")
	if second.Attempts != 2 || second.Fence <= first.Fence {
		t.Errorf("claimed %+v after %+v, want attempt 2 and a higher fence", second, first)
	}
	name := []catalog.Image{queued("a")}
	now, _, err := c.Expect(ctx, name, "example.org/a", "superseded", catalog.Job{Kind: "other", Key: "a"})
	must(t, err)
	p := publication(t, c, catalog.Image{N: now[0].N, Name: "a"}, "x")
	p.Lease = first.Lease()
	for what, err := range map[string]error{
		"extend":  errorOf(c.Jobs.Extend(ctx, first.Lease(), long, nil)),
		"end":     errorOf(c.Jobs.End(ctx, first.Lease(), catalog.Outcome{State: wire.JobDone})),
		"begin":   c.Begin(ctx, first.Lease(), now[0].N),
		"state":   c.End(ctx, first.Lease(), now[0].N, wire.StateFailed, "late"),
		"name":    c.NameAs(ctx, first.Lease(), "a", name),
		"publish": c.Publish(ctx, p),
		"layer":   errorOf(c.Jobs.ClaimLayer(ctx, first.Lease(), "x")),
	} {
		if !errors.Is(err, catalog.ErrLost) {
			t.Errorf("%s without the lease: %v, want ErrLost", what, err)
		}
	}
	if got := states(t, c, "a"); got != "a a queued;" {
		t.Errorf("the image: %s, want it queued", got)
	}
	must(t, c.Begin(ctx, second.Lease(), now[0].N))
	p.Lease = second.Lease()
	must(t, c.Publish(ctx, p))
	end(t, c, second, catalog.Outcome{State: wire.JobDone}, wire.JobDone)
	// An interrupted attempt does not count, and a restarted process gets its jobs back at once.
	addJob(t, c, catalog.Job{Kind: kind, Key: "b"}, 0)
	end(t, c, claim(t, c, "x", "b"), catalog.Outcome{State: wire.JobQueued, Uncounted: true}, wire.JobQueued)
	lost := claim(t, c, "x", "b")
	if lost.Attempts != 1 {
		t.Errorf("attempt %d, want 1", lost.Attempts)
	}
	must(t, c.Jobs.DropLeases(ctx, "y"))
	wantNoJob(t, c, slots)
	must(t, c.Jobs.DropLeases(ctx, "x"))
	must(t, c.Jobs.Uncount(ctx, lost.Lease())) // x goes on: no further attempt
	if j := claim(t, c, "x", "b"); j.Attempts != 1 {
		t.Errorf("attempt %d, want 1", j.Attempts)
	}
	must(t, c.Jobs.DropLeases(ctx, "x"))
	if j := claim(t, c, "z", "b"); j.Attempts != 2 {
		t.Errorf("attempt %d, want 2", j.Attempts)
	}
}

// Attempts count from 1, also when a worker loses a job that was requested again, and gets it back.
func testAttempts(t *testing.T, c *catalog.Catalog) {
	job := catalog.Job{Kind: kind, Key: "a"}
	addJob(t, c, job, 0)
	j := claim(t, c, "x", "a")
	addJob(t, c, job, 0) // while it runs
	lose(t, c, j)
	if j = claim(t, c, "x", "a"); j.Attempts != 1 {
		t.Errorf("attempt %d, want 1", j.Attempts)
	}
	lose(t, c, j)
	wantNoJob(t, c, []catalog.Slot{{Kind: "other"}}) // it is queued again
	addJob(t, c, job, 0)
	if j = claim(t, c, "x", "a"); j.Attempts != 1 {
		t.Errorf("attempt %d of a job that was requested while it was queued, want 1", j.Attempts)
	}
}

// The worker of a job about a name can change the name only if the job was not added again
// meanwhile, and if no other worker has the job.
func testNamesByJobs(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	const about = "name"
	add := func(payload string) {
		t.Helper()
		addJob(t, c, catalog.Job{Kind: about, Key: "a", Payload: []byte(payload)}, 0)
	}
	claimed := func() catalog.Lease {
		t.Helper()
		j, err := c.Jobs.Claim(ctx, "x", []catalog.Slot{{Kind: about}}, long)
		must(t, err)
		return j.Lease()
	}
	change := func(l catalog.Lease, want error) {
		t.Helper()
		if _, err := c.NameBy(ctx, l, "a", []catalog.Image{queued("1")}, jobOf("a")); !errors.Is(err, want) {
			t.Errorf("named: %v, want %v", err, want)
		}
		if err := c.Jobs.HoldUnchanged(ctx, l); !errors.Is(err, want) {
			t.Errorf("held: %v, want %v", err, want)
		}
		if err := c.RemoveBy(ctx, l, kind, "a", ""); !errors.Is(err, want) {
			t.Errorf("removed: %v, want %v", err, want)
		}
	}
	add("1")
	first := claimed()
	change(first, nil)
	add("2")
	change(first, catalog.ErrLost)
	_, err := c.Jobs.End(ctx, first, catalog.Outcome{State: wire.JobDone})
	must(t, err)
	second := claimed()
	change(first, catalog.ErrLost)
	change(second, nil)
	change(catalog.Lease{}, nil) // a request has no job
}

// A layer is claimed by at most one job, whose worker splits it.
func testClaims(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	addJob(t, c, catalog.Job{Kind: kind, Key: "a"}, 0)
	addJob(t, c, catalog.Job{Kind: kind, Key: "b"}, 0)
	a, b := claim(t, c, "x", "a"), claim(t, c, "y", "b")
	expect := func(j catalog.Job, layer string, want bool) {
		t.Helper()
		if claimed, err := c.Jobs.ClaimLayer(ctx, j.Lease(), layer); err != nil || claimed != want {
			t.Errorf("job %s claimed layer %s: %v, %v, want %v", j.Key, layer, claimed, err, want)
		}
	}
	owned := func(layer string, want catalog.Lease) {
		t.Helper()
		if owner, err := c.Jobs.LayerOwner(ctx, layer); err != nil || owner.Lease() != want {
			t.Errorf("the owner of layer %s: %+v, %v, want %+v", layer, owner, err, want)
		}
	}
	expect(a, "one", true)
	expect(a, "one", true)
	expect(b, "one", false)
	expect(b, "two", true)
	owned("one", a.Lease())
	owned("two", b.Lease())
	must(t, c.Jobs.ReleaseLayers(ctx, a.Lease()))
	if owner, err := c.Jobs.LayerOwner(ctx, "one"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("the owner of a released layer: %+v, %v, want ErrNotFound", owner, err)
	}
	expect(b, "one", true)
	owned("one", b.Lease())
	expect(a, "one", false)
	lose(t, c, b)
	expect(a, "one", true)
}

// The images of a job end with the job. A worker changes nothing if its job is to be cancelled, or
// was added again for another root.
func testJobImages(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	want := func(name, state string) {
		t.Helper()
		if images, err := c.Images(ctx, name); err != nil || len(images) != 1 || images[0].State != state {
			t.Errorf("image %s: %+v, %v, want it %s", name, images, err, state)
		}
	}
	// The process of a job that was to be cancelled has ended.
	job := jobOf("one")
	job.Secret = []byte("sealed")
	now, err := c.Name(ctx, "one", []catalog.Image{queued("one")}, job)
	must(t, err)
	j := claim(t, c, "x", "one")
	must(t, c.Begin(ctx, j.Lease(), now[0].N))
	must(t, errorOf(c.Jobs.Cancel(ctx, j.N)))
	for what, err := range map[string]error{"hold": c.Jobs.Hold(ctx, j.Lease()),
		"name": c.NameAs(ctx, j.Lease(), "one", []catalog.Image{queued("one")})} {
		if !errors.Is(err, catalog.ErrLost) {
			t.Errorf("%s for a job that is to be cancelled: %v, want ErrLost", what, err)
		}
	}
	lose(t, c, j)
	wantNoJob(t, c, slots)
	want("one", wire.StateFailed)
	if j, err = c.Jobs.Get(ctx, j.N); err != nil || j.State != wire.JobCancelled || len(j.Secret) > 0 {
		t.Errorf("job %+v, %v, want it cancelled, without its secret", j, err)
	}
	// A retry queues the job's image again. The images of a paused job are not active.
	must(t, c.Jobs.Retry(ctx, j.N))
	want("one", wire.StateQueued)
	j = claim(t, c, "x", "one")
	must(t, c.Begin(ctx, j.Lease(), now[0].N))
	must(t, errorOf(c.Jobs.Pause(ctx, j.N)))
	end(t, c, j, catalog.Outcome{State: wire.JobQueued, Uncounted: true}, wire.JobPaused)
	want("one", wire.StateQueued)
	must(t, c.Remove(ctx, kind, "one", ""))
	if err := c.Jobs.Retry(ctx, j.N); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("retry after the removal: %v, want ErrNotFound", err)
	}
	// The end of a job fails no image of the root that was requested meanwhile.
	_, err = c.Name(ctx, "two", []catalog.Image{queued("first")}, catalog.Job{Kind: kind, Key: "two", Root: "first"})
	must(t, err)
	j = claim(t, c, "x", "two")
	must(t, errorOf(c.Jobs.Cancel(ctx, j.N)))
	_, err = c.Name(ctx, "two", []catalog.Image{queued("second")}, catalog.Job{Kind: kind, Key: "two", Root: "second"})
	must(t, err)
	if err := c.Jobs.Hold(ctx, j.Lease()); !errors.Is(err, catalog.ErrLost) {
		t.Errorf("hold for another root: %v, want ErrLost", err)
	}
	end(t, c, j, catalog.Outcome{State: wire.JobFailed, Error: "late"}, wire.JobQueued)
	want("two", wire.StateQueued)
	if j = claim(t, c, "x", "two"); j.Root != "second" {
		t.Errorf("claimed again %+v, want the second root", j)
	}
	end(t, c, j, catalog.Outcome{State: wire.JobFailed, Error: "reason"}, wire.JobFailed)
	want("two", wire.StateFailed)
}
