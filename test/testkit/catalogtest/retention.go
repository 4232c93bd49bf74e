package catalogtest

import (
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/wire"
)

// For each name the catalog has two times: when the name was last given to an image, even if the
// image had the name before; and when a node last used the image's tree.
func testNameUses(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "one", "a")
	Publish(t, c, "two", "b")
	begin(t, c, "three")
	use := func(name string) catalog.NameUse {
		t.Helper()
		uses, now, err := c.NameUses(ctx, name)
		if err != nil || len(uses) != 1 || uses[0].Name != name || now.Sub(uses[0].Pushed).Abs() > time.Hour {
			t.Fatalf("use of %s: %+v at %v, %v", name, uses, now, err)
		}
		return uses[0]
	}
	before := use("one")
	if !before.Ready || before.Bytes != 7 || before.Used.IsZero() || use("three").Ready || !use("three").Used.IsZero() {
		t.Errorf("uses %+v and %+v, want one that is ready and used since it was made", before, use("three"))
	}
	time.Sleep(5 * time.Millisecond)
	if _, err := c.Name(ctx, "one", []catalog.Image{{Root: "one", Digest: "one", State: wire.StateReady}},
		jobOf("one")); err != nil {
		t.Fatal(err)
	}
	again := use("one")
	if !again.Pushed.After(before.Pushed) || !again.Used.Equal(before.Used) {
		t.Errorf("pushed again: %+v, before %+v", again, before)
	}
	if images, err := c.Images(ctx, "one"); err != nil || len(images) != 1 || !images[0].Pushed.Equal(again.Pushed) {
		t.Errorf("images %+v, %v, want one that was pushed at %v", images, err, again.Pushed)
	}
	later := time.Now().Add(time.Hour).Truncate(time.Second)
	must(t, c.Starts.Used(ctx, map[chunk.ID]time.Time{TreeOf("b"): later}, time.Time{}))
	if got := use("two"); !got.Used.Equal(later) {
		t.Errorf("used at %v, want %v", got.Used, later)
	}
	time.Sleep(5 * time.Millisecond)
	mirror := holder("m")
	mirror.Kind = wire.HolderMirror
	must(t, errorOf(c.Holders.SetHeld(ctx, mirror, []chunk.ID{TreeOf("a")}, anyHeld)))
	if got := use("one"); !got.Used.Equal(again.Used) {
		t.Errorf("used at %v after a mirror's report, want %v: a mirror does not use images", got.Used, again.Used)
	}
	setHeld(t, c, "n", TreeOf("a"))
	if got := use("one"); !got.Used.After(again.Used) {
		t.Errorf("used at %v after a node's report, want later than %v", got.Used, again.Used)
	}
	if all, _, err := c.NameUses(ctx, ""); err != nil || len(all) != 3 {
		t.Errorf("all uses: %+v, %v, want three", all, err)
	}
}
