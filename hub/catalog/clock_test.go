package catalog_test

import (
	"path/filepath"
	"slices"
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
		t.Fatalf("trees that lose their startup packs: %v (%v), want at least one", lost, err)
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
			t.Errorf("no row of %s has a time in %s, want at least one", of[0], of[1])
		}
		for _, at := range times {
			if at.After(now.Add(5*time.Minute)) || at.Before(now.Add(-5*time.Minute)) {
				t.Errorf("%s.%s is %s, want the database's time, which is about %s", of[0], of[1], at, now)
			}
		}
	}
}

// A hub that was off for longer than holders are kept forgets none of them for a lease, because
// they could not report. After that it forgets those that have not reported since.
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
	wantExpired("37 days after the last report", "one")
}

// After the database's clock was set back, accepted jobs run at once, and a name that is pushed
// then is newer than names from before. These keep their order.
func TestClockWasSetBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	c := catalogtest.Open(t, path)
	catalogtest.Publish(t, c, "r:2", "a")
	catalogtest.Publish(t, c, "r:1", "b")
	n, err := c.Jobs.Add(t.Context(), catalog.Job{Kind: "kind", Key: "key"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, path, `UPDATE jobs SET run_at = run_at + 600000, updated = updated + 600000;
		UPDATE images SET pushed = pushed + 600000, updated = updated + 600000 + n`)
	c = catalogtest.Open(t, path)
	for range 2 { // the second time after the process of the first worker has ended
		j, err := c.Jobs.Claim(t.Context(), "worker", []catalog.Slot{{Kind: "kind"}}, time.Minute)
		if err != nil || j.N != n {
			t.Errorf("Claim returned job %d, %v; want the accepted job %d", j.N, err, n)
		}
		execute(t, path, `UPDATE jobs SET run_at = run_at + 600000, updated = updated + 600000`)
		c = catalogtest.Open(t, path)
		if err := c.Jobs.DropLeases(t.Context(), "worker"); err != nil {
			t.Fatal(err)
		}
	}
	catalogtest.Publish(t, c, "r:0", "c")
	uses, now, err := c.NameUses(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(uses, func(a, b catalog.NameUse) int { return a.Pushed.Compare(b.Pushed) })
	names := ""
	for _, u := range uses {
		names += u.Name + " "
		if u.Pushed.After(now) {
			t.Errorf("%s was pushed at %s, which is after now, %s", u.Name, u.Pushed, now)
		}
	}
	if names != "r:2 r:1 r:0 " {
		t.Errorf("the names in the order of their times are %s; want r:2 r:1 r:0", names)
	}
}
