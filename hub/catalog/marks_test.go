package catalog_test

import (
	"fmt"
	"runtime"
	"testing"

	"lighter/hub/catalog"
	"lighter/test/testkit/catalogtest"
)

// Numbers of removed chunks are never used again. So what is computed of all chunks takes memory
// for those that the hub has, however high their numbers are.
func TestMemoryOfHighNumbers(t *testing.T) { highNumbers(t, openNew(t)) }

func highNumbers(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	catalogtest.Publish(t, c, "one", "a", "b")
	const high = 1 << 30
	c.Exec(t, fmt.Sprintf(`UPDATE numbers SET last = %d WHERE name = 'chunks'`, high))
	catalogtest.Publish(t, c, "two", "a", "c")

	for what, do := range map[string]func(){
		"sizes of images": func() {
			defer keepSizes(t, c)()
			want := catalog.Sizes{Chunks: 1000, Stored: 400 + 100 + 7}
			expectSizes(t, c, "", map[string]catalog.Sizes{"one": want, "two": want})
		},
		"packs with unneeded chunks": func() {
			for _, layer := range []string{"a", "b", "c"} {
				marks, err := c.Garbage.MarkChunks(ctx, []string{layer})
				if err != nil {
					t.Fatal(err)
				}
				packs, err := c.Garbage.SuspectPacks(ctx, marks)
				if err != nil || len(packs) != 1 {
					t.Errorf("packs that have chunks of layer %s only: %d (%v), want one", layer, packs, err)
				}
			}
		},
		"consistency": func() {
			if found, err := c.Checks.Inconsistencies(ctx); err != nil || len(found) > 0 {
				t.Errorf("found %v (%v), want no inconsistency", found, err)
			}
		},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		do()
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 16<<20 {
			t.Errorf("%s: %d MiB allocated for three chunks, the last with a number above %d", what, got>>20, high)
		}
	}
}
