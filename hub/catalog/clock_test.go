package catalog_test

import (
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/test/testkit/catalogtest"
)

// The times by which processes decide are those of the database, however wrong a process's clock
// is.
func TestTimesAreOfTheDatabase(t *testing.T) {
	ctx := t.Context()
	c := openNew(t)
	c.SetBehind(10 * time.Minute)
	catalogtest.Publish(t, c, "one", "a")
	catalogtest.Publish(t, c, "two", "b")
	tree := catalogtest.TreeOf("a")
	pack := catalog.StartupPack{ID: chunk.Sum([]byte("pack")), Size: 100}
	for _, l := range []catalog.Layout{{Packs: []catalog.StartupPack{pack}}, {}, {Packs: []catalog.StartupPack{{
		ID: chunk.Sum([]byte("another")), Size: 100}}}} { // the first pack retires
		l.Tree, l.Locations = tree, chunk.Sum([]byte("locations"))
		if err := c.Starts.SetLayout(ctx, &l); err != nil {
			t.Fatal(err)
		}
	}
	if lost, err := c.Starts.Lose(ctx, 0); err != nil || len(lost) == 0 {
		t.Fatalf("lost %v, %v", lost, err)
	}
	if err := c.Remove(ctx, "image", "one", ""); err != nil {
		t.Fatal(err)
	}
	now, err := c.Now(ctx)
	if err == nil {
		err = c.Starts.Unserved(ctx, now.Add(-time.Hour))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range [][2]string{{"images", "updated"}, {"images", "pushed"}, {"startup_packs", "retired"},
		{"layouts", "unserved"}, {"layouts", "used"}, {"layouts", "lost"}, {"jobs", "updated"}, {"jobs", "run_at"}} {
		times := c.Times(t, of[0], of[1])
		if len(times) == 0 {
			t.Errorf("no row of %s has a time in %s", of[0], of[1])
		}
		for _, at := range times {
			if at.After(now.Add(5*time.Minute)) || at.Before(now.Add(-5*time.Minute)) {
				t.Errorf("%s.%s is %s, the database's time is %s", of[0], of[1], at, now)
			}
		}
	}
}

// A hub that was off for longer than holders are kept forgets none of them for a lease: they had no
// time to report. Those that do not report then are forgotten.
func TestHubThatWasOff(t *testing.T) {
	ctx, c := t.Context(), openNew(t)
	const day, age = 24 * time.Hour, 37 * 24 * time.Hour
	note := func() {
		t.Helper()
		if err := c.Holders.NoteServing(ctx); err != nil {
			t.Fatal(err)
		}
	}
	report := func(id string) {
		t.Helper()
		if _, err := c.Holders.SetHeld(ctx, catalog.Holder{ID: id, Kind: "node"}, nil,
			catalog.HeldBounds{Holders: 9}); err != nil {
			t.Fatal(err)
		}
	}
	wantExpired := func(when, want string) {
		t.Helper()
		expired, err := c.Holders.ExpireHolders(ctx, age, 10)
		got := ""
		for _, h := range expired {
			got += h.ID
		}
		if err != nil || got != want {
			t.Errorf("%s, expired %q, %v, want %q", when, got, err, want)
		}
	}
	c.SetBehind(100 * day)
	note()
	report("one")
	report("two")
	c.SetBehind(-50 * day) // the clock goes forward
	report("one")
	for range 6 {
		wantExpired("after 50 days without the hub", "")
		c.SetBehind(-day)
	}
	c.SetBehind(-day)
	wantExpired("a week later", "two")
	c.SetBehind(-6 * day)
	note()
	c.SetBehind(-6 * day)
	wantExpired("after a shorter interruption", "")
	for range 6 {
		c.SetBehind(-3 * day)
		note()
	}
	wantExpired("when its age has come", "one")
}
