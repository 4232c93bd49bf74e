package catalog

import (
	"context"
	"path/filepath"
	"testing"
	"time"
)

// keepSizes counts sizes until the function that it returns is called.
func keepSizes(t *testing.T, c *Catalog) (stop func()) {
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

func (c *Catalog) expectSizes(t *testing.T, name string, want map[string]Sizes) {
	t.Helper()
	sizes, err := c.Sizes(t.Context(), name)
	if err != nil || len(sizes) != len(want) {
		t.Errorf("sizes of %q: %+v, %v, want %+v", name, sizes, err, want)
	}
	for digest, want := range want {
		if got := sizes[digest]; got != want {
			t.Errorf("%s: %+v, want %+v", digest, got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	c := openTest(t)
	defer keepSizes(t, c)()
	c.expectSizes(t, "", nil)
	publish(t, c, "one", "a", "b")
	publish(t, c, "two", "a", "c", "d")
	one := Sizes{Chunks: 1000, Stored: 400 + 100 + 7}
	two := Sizes{Chunks: 2000, Stored: 2*(400+100) + 7}
	c.expectSizes(t, "", map[string]Sizes{"one": one, "two": two})
	c.expectSizes(t, "one", map[string]Sizes{"one": one})
	if _, err := c.Remove(t.Context(), "two", ""); err != nil {
		t.Fatal(err)
	}
	c.expectSizes(t, "", map[string]Sizes{"one": {Chunks: 2000, Stored: 2*(400+100) + 7}})
}

// A change costs what it changes: the sums of other images are not made anew,
// and a restart makes none.
func TestSizesAreCountedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	ctx := t.Context()
	c, err := Open(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	stop := keepSizes(t, c)
	publish(t, c, "one", "a", "b")
	publish(t, c, "two", "a", "c")
	c.expectSizes(t, "one", map[string]Sizes{"one": {1000, 400 + 100 + 7}})
	// Sums that give themselves away.
	if _, err := c.write.Exec(`UPDATE image_sizes SET plain = 42, stored = 0`); err != nil {
		t.Fatal(err)
	}
	publish(t, c, "three", "c", "d")
	stop()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if c, err = Open(ctx, path); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer keepSizes(t, c)()
	c.expectSizes(t, "", map[string]Sizes{
		"one":   {42, 100 + 7},         // as it was
		"two":   {0, 7},                // lost its chunk to three
		"three": {1000, 400 + 100 + 7}, // is new
	})
}

// An answer does not wait for a count that takes long, nor for one that fails.
func TestSizesComeWithoutTheCount(t *testing.T) {
	c := openTest(t)
	stop := keepSizes(t, c)
	publish(t, c, "one", "a")
	want := map[string]Sizes{"one": {1000, 400 + 100 + 7}}
	c.expectSizes(t, "", want)
	stop()
	publish(t, c, "two", "a")
	c.sizes.wait = time.Millisecond
	c.expectSizes(t, "", want)

	c.sizes.wait = time.Minute
	if _, err := c.write.Exec(`UPDATE layers SET chunks = x'ff'`); err != nil {
		t.Fatal(err)
	}
	defer keepSizes(t, c)()
	if sizes, err := c.Sizes(t.Context(), ""); err == nil {
		t.Errorf("counted on damaged layers: %+v", sizes)
	}
}
