package catalog

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"lighter/format/chunk"
)

// Packs that have retired go by their age or, if they are too many bytes, those
// first that retired first.
func TestRetired(t *testing.T) {
	c := openTest(t)
	publish(t, c, "one", "a")
	tree := chunk.Sum([]byte("a"))
	var ids []chunk.ID
	for i := range byte(4) {
		ids = append(ids, chunk.Sum([]byte{i}))
		if err := c.SetLayout(t.Context(), &Layout{Tree: tree, Packs: []StartupPack{{ID: ids[i], Size: 100}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.write.Exec(`UPDATE startup_packs SET retired = ? WHERE retired > 1000`, int(i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		before, later, bytes int64
		want                 []chunk.ID
	}{{0, 0, 1000, nil}, {2, 0, 1000, ids[:1]}, {9, 0, 1000, ids[:3]}, {0, 9, 1000, nil}, {0, 9, 200, ids[:1]}, {0, 9, 0, ids[:3]}, {0, 3, 0, ids[:2]}} {
		got, err := c.Retired(t.Context(), time.UnixMilli(test.before), time.UnixMilli(test.later), test.bytes, 10)
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%+v: %v, %v", test, got, err)
		}
	}
	if err := c.SetLayout(t.Context(), &Layout{Tree: tree, Packs: []StartupPack{{ID: ids[2], Size: 100}}}); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Retired(t.Context(), time.UnixMilli(9), time.UnixMilli(9), 1000, 10); err != nil || !slices.Equal(got, ids[:2]) {
		t.Errorf("one is there again: %v, %v", got, err)
	}
	// What another tree has, too, stays.
	publish(t, c, "two", "b")
	for _, l := range []Layout{{Tree: chunk.Sum([]byte("b")), Packs: []StartupPack{{ID: ids[2], Size: 100}}}, {Tree: tree}} {
		if err := c.SetLayout(t.Context(), &l); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.DropRetired(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
	if held, err := c.StartHoldings(t.Context()); err != nil || held.Packs != 1 || held.PackBytes != 100 {
		t.Errorf("%+v, %v", held, err)
	}
}

// Of each tree a bounded number of traces waits, and none of a tree that no image
// has.
func TestTracesThatWait(t *testing.T) {
	c := openTest(t)
	publish(t, c, "one", "a")
	publish(t, c, "two", "b")
	tree := chunk.Sum([]byte("a"))
	for range maxWaiting {
		if err := c.AddTrace(t.Context(), tree, "", []byte("trace"), time.UnixMilli(7)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.AddTrace(t.Context(), tree, "", []byte("trace"), time.UnixMilli(7)); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	if err := c.AddTrace(t.Context(), chunk.Sum([]byte("b")), "", []byte("trace"), time.UnixMilli(7)); err != nil {
		t.Errorf("of another tree: %v", err)
	}
	// The tree was given up: who comes later has it looked at once more.
	if err := c.Settle(t.Context(), tree, maxWaiting+1, time.UnixMilli(9)); err != nil {
		t.Fatal(err)
	}
	if due, err := c.DueOf(t.Context(), tree); err != nil || !due.At.IsZero() {
		t.Fatalf("%+v, %v", due, err)
	}
	if err := c.AddTrace(t.Context(), tree, "", []byte("trace"), time.UnixMilli(8)); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	if due, err := c.DueOf(t.Context(), tree); err != nil || due.At != time.UnixMilli(8) {
		t.Errorf("%+v, %v: nobody would look at those that wait", due, err)
	}
	if _, err := c.Remove(t.Context(), "one", ""); err != nil {
		t.Fatal(err)
	}
	for _, id := range []chunk.ID{tree, chunk.Sum([]byte("none"))} {
		if err := c.AddTrace(t.Context(), id, "", []byte("trace"), time.UnixMilli(7)); !errors.Is(err, ErrNotFound) {
			t.Errorf("of a tree that no image has: %v", err)
		}
	}
	traces, err := c.Traces(t.Context(), tree)
	if err != nil || len(traces) != maxWaiting || !traces[0].Raw {
		t.Errorf("%d wait, %v", len(traces), err)
	}
	if err := c.KeepRecordings(t.Context(), tree, nil, []byte("kept"), traces[9].N); err != nil {
		t.Fatal(err)
	}
	traces, err = c.Traces(t.Context(), tree)
	kept, keptErr := c.Recordings(t.Context(), tree)
	if err != nil || keptErr != nil || len(traces) != maxWaiting-10 || string(kept) != "kept" {
		t.Errorf("then %d wait and %q is kept, %v, %v", len(traces), kept, err, keptErr)
	}
}

// Whoever is faster wins: what was forgotten meanwhile is not kept after all, and
// what came meanwhile is not forgotten.
func TestRecordingsThatChangeMeanwhile(t *testing.T) {
	c := openTest(t)
	publish(t, c, "one", "a")
	tree := chunk.Sum([]byte("a"))
	add := func() []Trace {
		t.Helper()
		if err := c.AddTrace(t.Context(), tree, "", []byte("trace"), time.UnixMilli(7)); err != nil {
			t.Fatal(err)
		}
		traces, err := c.Traces(t.Context(), tree)
		if err != nil {
			t.Fatal(err)
		}
		return traces
	}
	before := add()
	if n, err := c.CutRecordings(t.Context(), tree, nil, []byte("none"), true); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	if err := c.KeepRecordings(t.Context(), tree, nil, []byte("forgotten"), before[0].N); !errors.Is(err, ErrChanged) {
		t.Errorf("what was forgotten is kept: %v", err)
	}
	traces := add()
	if err := c.KeepRecordings(t.Context(), tree, []byte("none"), []byte("some"), traces[0].N); err != nil {
		t.Fatal(err)
	}
	for _, all := range []bool{false, true} {
		if _, err := c.CutRecordings(t.Context(), tree, []byte("none"), []byte("less"), all); !errors.Is(err, ErrChanged) {
			t.Errorf("what came meanwhile is cut: %v", err)
		}
	}
	if err := c.Settle(t.Context(), tree, -1, time.UnixMilli(1)); err != nil {
		t.Fatal(err)
	}
	add()
	if n, err := c.CutRecordings(t.Context(), tree, []byte("some"), []byte("less"), false); err != nil || n != 0 {
		t.Fatal(n, err)
	}
	kept, err := c.Recordings(t.Context(), tree)
	due, dueErr := c.DueOf(t.Context(), tree)
	if err != nil || dueErr != nil || string(kept) != "less" || due.At.Before(time.UnixMilli(2)) {
		t.Errorf("%q is kept, %v, %+v, %v", kept, err, due, dueErr)
	}
}

// What waits is bounded in bytes, too, of each tree and of all. One trace of a tree
// may always be long.
func TestLongTracesThatWait(t *testing.T) {
	c := openTest(t)
	long := make([]byte, maxWaitingBytes)
	for i := range maxAllWaitingBytes/maxWaitingBytes + 1 {
		name := fmt.Sprint(i)
		publish(t, c, name, name)
		tree := chunk.Sum([]byte(name))
		err := c.AddRecordings(t.Context(), tree, long, time.UnixMilli(7))
		if i == maxAllWaitingBytes/maxWaitingBytes {
			if !errors.Is(err, ErrFull) {
				t.Errorf("more than of all may wait: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AddTrace(t.Context(), tree, "", []byte("trace"), time.UnixMilli(7)); !errors.Is(err, ErrFull) {
			t.Errorf("one more: %v", err)
		}
	}
}
