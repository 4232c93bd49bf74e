package catalog_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"lighter/hub/catalog"
	"lighter/test/testkit/catalogtest"
)

// keepSizes runs KeepSizes until stop is called.
func keepSizes(t *testing.T, c *catalog.Catalog) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.KeepSizes(ctx, slog.New(slog.DiscardHandler)) }()
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
	c, err := catalog.Open(t.Context(), catalog.Place{Source: path})
	if err != nil {
		t.Fatal(err)
	}
	stop := keepSizes(t, c)
	catalogtest.Publish(t, c, "one", "a", "b")
	catalogtest.Publish(t, c, "two", "a", "c")
	expectSizes(t, c, "one", map[string]catalog.Sizes{"one": {Chunks: 1000, Stored: 400 + 100 + 7}})
	c.Exec(t, `UPDATE image_sizes SET plain = 42, stored = 0`) // rows with these values were not computed again
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

// An answer does not wait for a computation of sizes.
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
}

// A failed computation is logged and repeated. Meanwhile the last sizes are the answer.
func TestSizesCannotBeComputed(t *testing.T) {
	c := openNew(t)
	catalogtest.Publish(t, c, "one", "a")
	c.Exec(t, `CREATE TABLE kept AS SELECT diff_id, chunks FROM layers`)
	c.Exec(t, `UPDATE layers SET chunks = x'ff'`)
	failed := make(logged, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.KeepSizes(ctx, slog.New(slog.NewTextHandler(failed, nil))) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	if line := <-failed; !strings.Contains(line, "compute the images' sizes") {
		t.Errorf("logged %q, want the failed computation", line)
	}
	if got, current, err := c.Sizes(t.Context(), ""); err != nil || current || len(got) != 0 {
		t.Errorf("sizes %+v, current: %v, %v, want none", got, current, err)
	}
	c.Exec(t, `UPDATE layers SET chunks = (SELECT chunks FROM kept WHERE kept.diff_id = layers.diff_id)`)
	expectSizes(t, c, "", map[string]catalog.Sizes{"one": {Chunks: 1000, Stored: 400 + 100 + 7}})
}

// logged receives the lines of a log. Lines are dropped while it is full.
type logged chan string

func (l logged) Write(line []byte) (int, error) {
	select {
	case l <- string(line):
	default:
	}
	return len(line), nil
}

// The sizes of the last change stay, in whatever order two processes compute and store theirs.
func TestSizesOfTwoProcesses(t *testing.T) {
	sizesOfTwoProcesses(t, filepath.Join(t.TempDir(), "catalog.db"))
}

func sizesOfTwoProcesses(t *testing.T, source string) {
	slow, other := catalogtest.Open(t, source), catalogtest.Open(t, source)
	reading, resume := make(chan struct{}), make(chan struct{})
	pause := sync.OnceFunc(func() {
		close(reading)
		<-resume
	})
	slow.Observe(func(_ context.Context, statement string, _ []any) {
		if strings.HasSuffix(statement, "FROM image_sizes") {
			pause() // slow has read the images and their chunks
		}
	})
	catalogtest.Publish(t, other, "one", "a", "b")
	catalogtest.Publish(t, other, "two", "a", "c")
	defer keepSizes(t, slow)()
	<-reading
	if err := other.Remove(t.Context(), "image", "two", ""); err != nil {
		t.Error(err)
	}
	defer keepSizes(t, other)()
	want := map[string]catalog.Sizes{"one": {Chunks: 2000, Stored: 2*(400+100) + 7}}
	expectSizes(t, other, "", want)
	close(resume)
	expectSizes(t, slow, "", want)
}
