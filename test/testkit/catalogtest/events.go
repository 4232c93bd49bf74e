package catalogtest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"lighter/hub/catalog"
	"lighter/wire"
)

// happened returns what events say: KIND NAME DIGEST [ERROR].
func happened(t *testing.T, c *catalog.Catalog) (lines []string) {
	t.Helper()
	events, err := c.Events.After(t.Context(), 0, 100)
	must(t, err)
	for _, e := range events {
		line := e.Kind + " " + e.Name + " " + e.Digest
		if e.Error != "" {
			line += " " + e.Error
		}
		lines = append(lines, line)
	}
	return lines
}

// Each change of an image's state has one event, whoever makes the change. A transaction that fails
// has none.
func testEvents(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	image := Publish(t, c, "one", "a")
	_, j := begin(t, c, "two")
	p := publication(t, c, image, "b")
	p.Lease = catalog.Lease{Job: j.N, Fence: j.Fence + 1}
	if err := c.Publish(ctx, p); !errors.Is(err, catalog.ErrLost) {
		t.Fatalf("a publication without its lease: %v", err)
	}
	end(t, c, j, catalog.Outcome{State: wire.JobFailed, Error: "why"}, wire.JobFailed)
	must(t, c.Remove(ctx, kind, "one", ""))
	must(t, errorOf(c.Name(ctx, "two", []catalog.Image{queued("three")}, jobOf("two"))))
	want := []string{"queued one " + image.Digest, "active one " + image.Digest, "ready one " + image.Digest,
		"queued two two", "active two two", "failed two two image two: why", "removed one " + image.Digest,
		"queued two three", "removed two two"}
	if got := happened(t, c); !slices.Equal(got, want) {
		t.Errorf("events\n%q\nwant\n%q", got, want)
	}
}

// Each target gets each event that it wants until it has it. Deliveries and events are bounded.
func testDeliveries(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	for n := range 3 {
		Publish(t, c, fmt.Sprint(n), "a")
	}
	is := func(what string, got, want any) {
		t.Helper()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	due := func(target string) (names []string) {
		t.Helper()
		all, err := c.Events.Due(ctx, target, 10)
		must(t, err)
		for _, d := range all {
			names = append(names, d.Name)
		}
		has, err := c.Events.IsDue(ctx, target)
		must(t, err)
		is("deliveries are due", has, len(all) > 0)
		return names
	}
	first := func(target string) catalog.Delivery {
		t.Helper()
		all, err := c.Events.Due(ctx, target, 1)
		must(t, err)
		return all[0]
	}
	both := func(e catalog.Event) []string {
		is("kind", e.Kind, wire.StateReady)
		return []string{"x", "y"}
	}
	for _, want := range []int{2, 1, 0} {
		n, err := c.Events.Distribute(ctx, 2, both)
		must(t, err)
		is("distributed", n, want)
	}
	must(t, c.Events.Delivered(ctx, first("x")))
	is("due for x", due("x"), "[1 2]")
	must(t, c.Events.Failed(ctx, first("x"), "timeout", time.Hour, false))
	is("due for x after a failure", due("x"), "[2]")
	must(t, c.Events.Rest(ctx, "x", "503", time.Hour))
	is("due for x while it rests", due("x"), "[]")
	is("due for y", due("y"), "[0 1 2]")
	must(t, c.Events.Failed(ctx, first("y"), "400", 0, true))
	dead, err := c.Events.Deliveries(ctx, true, 10)
	must(t, err)
	if len(dead) != 1 || dead[0].Name != "0" || dead[0].Target != "y" || dead[0].Attempts != 1 ||
		dead[0].Failure != "400" || dead[0].Dead.IsZero() {
		t.Errorf("dead deliveries %+v, want one", dead)
	}
	waiting, counted, err := c.Events.Count(ctx)
	must(t, err)
	is("counts", fmt.Sprint(waiting, counted), "map[x:2 y:2] map[y:1]")
	if _, err := c.Events.Revive(ctx, "unknown"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("an unknown event was retried: %v", err)
	}
	n, err := c.Events.Revive(ctx, dead[0].ID)
	must(t, err)
	is("revived", n, 1)
	is("due for y", due("y"), "[0 1 2]")

	loose := catalog.EventBounds{Events: 100, Age: time.Hour, Waiting: 100, Lasting: time.Hour, Dead: 100,
		Kept: time.Hour}
	prune := func(change func(*catalog.EventBounds), died, removed int64) {
		t.Helper()
		b := loose
		change(&b)
		gotDied, gotRemoved, err := c.Events.Prune(ctx, b)
		must(t, err)
		is("pruned", fmt.Sprint(gotDied, gotRemoved), fmt.Sprint(died, removed))
	}
	prune(func(*catalog.EventBounds) {}, 0, 0)
	prune(func(b *catalog.EventBounds) { b.Waiting = 3 }, 3, 0) // of event 1: x and y; of event 0: y
	prune(func(b *catalog.EventBounds) { b.Dead = 1 }, 0, 3)
	prune(func(b *catalog.EventBounds) { b.Lasting = -time.Hour }, 2, 0)
	prune(func(b *catalog.EventBounds) { b.Events = 0 }, 0, 0)
	events, err := c.Events.Latest(ctx, 100)
	must(t, err)
	is("events whose deliveries are kept", len(events), 1)
	prune(func(b *catalog.EventBounds) { b.Kept, b.Age = -time.Hour, -time.Hour }, 0, 2)
	events, err = c.Events.Latest(ctx, 100)
	must(t, err)
	is("events", len(events), 0)
}
