package catalog_test

import (
	"context"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"lighter/hub/catalog"
	"lighter/test/testkit/catalogtest"
)

// keepSizes runs KeepSizes until stop is called.
func keepSizes(t *testing.T, c *catalog.Catalog) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.KeepSizes(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func expectSizes(t *testing.T, c *catalog.Catalog, name string, want map[string]catalog.Sizes) {
	t.Helper()
	if got := catalogtest.Sizes(t, c, name); !reflect.DeepEqual(got, want) {
		t.Errorf("sizes of %q: %+v, want %+v", name, got, want)
	}
}

// After a change only the sizes of affected images are computed, and none after a restart.
func TestSizesAreComputedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	c, err := catalog.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	stop := keepSizes(t, c)
	catalogtest.Publish(t, c, "one", "a", "b")
	catalogtest.Publish(t, c, "two", "a", "c")
	expectSizes(t, c, "one", map[string]catalog.Sizes{"one": {Chunks: 1000, Stored: 400 + 100 + 7}})
	c.Exec(t, `UPDATE image_sizes SET plain = 42, stored = 0`) // to recognize them
	catalogtest.Publish(t, c, "three", "c", "d")
	stop()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = catalogtest.Open(t, path)
	defer keepSizes(t, c)()
	expectSizes(t, c, "", map[string]catalog.Sizes{
		"one":   {Chunks: 42, Stored: 100 + 7},         // unchanged
		"two":   {Chunks: 0, Stored: 7},                // shares its chunk with three now
		"three": {Chunks: 1000, Stored: 400 + 100 + 7}, // new
	})
}

// An answer does not wait for a computation of sizes. An error of the last one is returned.
func TestSizesWithoutWaiting(t *testing.T) {
	c := openNew(t)
	stop := keepSizes(t, c)
	catalogtest.Publish(t, c, "one", "a")
	want := map[string]catalog.Sizes{"one": {Chunks: 1000, Stored: 400 + 100 + 7}}
	expectSizes(t, c, "", want)
	stop()
	catalogtest.Publish(t, c, "two", "a")
	if got, current, err := c.Sizes(t.Context(), ""); err != nil || current || !reflect.DeepEqual(got, want) {
		t.Errorf("sizes %+v, current: %v, %v, want the last ones, %+v", got, current, err, want)
	}

	c.Exec(t, `UPDATE layers SET chunks = x'ff'`)
	defer keepSizes(t, c)()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, _, err := c.Sizes(t.Context(), ""); err != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("sizes were computed from damaged layers")
		}
	}
}
