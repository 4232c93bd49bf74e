package hub_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/trace"
	"lighter/hub/catalog"
	"lighter/store/origin"
	"lighter/test/testkit/tarball"
	"lighter/wire"
)

// startsTar returns a layer with the files d/f0 to d/f9, of 200,000 bytes each. The seeds of their
// bytes are first to first+9.
func startsTar(first uint64) []byte {
	entries := []tarball.Item{tarball.Dir("d")}
	for i := range uint64(10) {
		entries = append(entries, tarball.File(fmt.Sprintf("d/f%d", i), noise(first+i, 200_000)))
	}
	return tarball.Of(entries...)
}

// startsHub runs a hub that makes layouts as soon as there is a trace, and does not recompress.
func startsHub(t *testing.T) *testHub {
	t.Helper()
	h := openHub(t, hubConfig(t))
	h.Starts().Timing.MergeDelay, h.Starts().Timing.Recompress = 0, time.Hour
	return runHub(t, h)
}

// extents fetches the extent map of a tree as a node does.
func (h *testHub) extents(tree string) *index.Map {
	h.t.Helper()
	id, err := chunk.ParseID(tree)
	if err != nil {
		h.t.Fatal(err)
	}
	var extents bytes.Buffer
	err = h.origins().Index(h.t.Context(), id, func(plain io.Reader) error {
		_, err := index.Receive(plain, id, &extents, io.Discard)
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	m, err := index.OpenMap(bytes.NewReader(extents.Bytes()), id, index.NewPages(64))
	if err != nil {
		h.t.Fatal(err)
	}
	return m
}

// origins returns a node's client of the hub.
func (h *testHub) origins() *origin.Failover {
	return originsOf(h.t, h.client)
}

// filesOf returns the device ranges of the tree's files, in the order of the device.
func filesOf(t *testing.T, m *index.Map) (files []trace.Read) {
	t.Helper()
	for i := range m.Extents {
		e, err := m.Extent(i)
		if err != nil {
			t.Fatal(err)
		}
		if e.First {
			files = append(files, trace.Read{Offset: e.Offset})
		}
		last := &files[len(files)-1]
		last.Length = (e.End() - last.Offset + 4095) / 4096 * 4096
	}
	return files
}

// traced reports a trace of reads of these files of a tree, in this order, and waits for the
// layout.
func (h *testHub) traced(m *index.Map, which ...int) {
	h.t.Helper()
	files := filesOf(h.t, m)
	tr := trace.Trace{Tree: m.ID()}
	for i, n := range which {
		read := files[n]
		read.At = time.Duration(i) * time.Millisecond
		tr.Reads = append(tr.Reads, read)
	}
	if err := h.origins().SendTrace(h.t.Context(), m.ID(), tr); err != nil {
		h.t.Fatal(err)
	}
	h.await(m.ID())
}

// await waits until the layout of a tree is up to date.
func (h *testHub) await(tree chunk.ID) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 30*time.Second)
	defer cancel()
	if err := h.Starts().Await(ctx, tree); err != nil {
		h.t.Fatal(err)
	}
}

// startups returns the startup packs of a tree, and for each file the position of the pack that has
// its chunks: -1 if no pack has them, -2 if they are in different packs.
func (h *testHub) startups(m *index.Map) ([]index.Startup, []int) {
	h.t.Helper()
	locations := fetchLocations(h.t, h.origins(), m.Header)
	packs := locations.Startups()
	var in []int
	for i := range m.Extents {
		e, err := m.Extent(i)
		if err != nil {
			h.t.Fatal(err)
		}
		unit, err := locations.Unit(i)
		if err != nil {
			h.t.Fatal(err)
		}
		which := slices.IndexFunc(packs, func(s index.Startup) bool { return s.Pack == unit.Pack })
		if e.First {
			in = append(in, which)
		} else if in[len(in)-1] != which {
			in[len(in)-1] = -2
		}
	}
	return packs, in
}

// After a trace, a startup pack has the chunks that the start has read. Other figures of the image
// do not change.
func TestTraceBecomesStartupPack(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	got := h.pushReady("a:1", image(startsTar(10)))
	m := h.extents(got.Tree)
	packs, _ := h.startups(m)
	path := "/lighter/1/default/locations/" + got.Tree
	_, _, before := h.do("GET", path, nil)
	guess := len(packs)
	inspected := h.inspect("a:1")

	h.traced(m, 7, 2, 4)
	packs, in := h.startups(m)
	if len(packs) != 1 || !packs[0].AtMount || len(packs[0].Triggers) != 0 ||
		fmt.Sprint(in) != "[-1 -1 0 -1 0 -1 -1 0 -1 -1]" {
		t.Fatalf("startup packs %+v with the files %v, want one with 2, 4 and 7; the guess had %d", packs, in, guess)
	}
	h.fetchTree(got.Chain)
	if problems := h.problems("a:1"); problems != "" {
		t.Errorf("verify: %s", problems)
	}
	after := h.inspect("a:1")
	if after.StartupPacks != 1 || after.StartupBytes < packs[0].Bytes() || after.StartupBytes > packs[0].Bytes()+1000 {
		t.Errorf("inspect shows %d startup packs of %d bytes, want those of the locations, %+v", after.StartupPacks,
			after.StartupBytes, packs)
	}
	after.StartupPacks, after.StartupBytes, after.IndexWire = inspected.StartupPacks, inspected.StartupBytes,
		inspected.IndexWire
	if fmt.Sprintf("%+v", after) != fmt.Sprintf("%+v", inspected) {
		t.Errorf("inspect shows\n%+v\nwant, as before,\n%+v", after, inspected)
	}
	_, _, now := h.do("GET", path, nil)
	if status, _, _ := h.do("GET", path, nil, "If-None-Match", before.Get("ETag")); status != 200 ||
		now.Get("ETag") == before.Get("ETag") {
		t.Errorf("with the tag of the previous locations: %d, want 200 and another tag", status)
	}
	if status, _, _ := h.do("GET", path, nil, "If-None-Match", now.Get("ETag")); status != http.StatusNotModified {
		t.Errorf("with the current tag: %d, want 304", status)
	}

	// The same with a node's client.
	if l, sum := fetchNewer(t, h.origins(), m.Header, chunk.ID{1}); l == nil {
		t.Error("a node with other locations gets none")
	} else if l, _ := fetchNewer(t, h.origins(), m.Header, sum); l != nil {
		t.Error("a node with these locations gets them again")
	}

	// The same trace again changes nothing, nor does a restart.
	list, laid := files(t, objectsDir(h.config)), h.Starts().Counts().Laid
	h.traced(m, 7, 2, 4)
	if again := files(t, objectsDir(h.config)); !slices.Equal(list, again) ||
		h.Starts().Counts().Laid != laid {
		t.Errorf("after the same trace: objects\n%q\nwant\n%q", again, list)
	}
	h = h.restart()
	if packs, again := h.startups(m); len(packs) != 1 || fmt.Sprint(in) != fmt.Sprint(again) {
		t.Errorf("after a restart: packs %+v with the files %v, want %v", packs, again, in)
	}
	if n := countWith(list, "locations/"); n != 1 {
		t.Errorf("the bucket has %d locations of one tree, want one: %q", n, list)
	}
}

func (h *testHub) inspect(name string) wire.Inspection {
	h.t.Helper()
	for range 100 {
		found, err := h.client.Inspect(h.t.Context(), name)
		if err != nil || len(found) != 1 {
			h.t.Fatalf("inspect %s: %+v, %v, want one image", name, found, err)
		}
		if found[0].Blobs != 0 { // counted
			return found[0]
		}
		time.Sleep(20 * time.Millisecond)
	}
	h.t.Fatal("the image's sizes are not computed")
	return wire.Inspection{}
}

func countWith(list []string, prefix string) (n int) {
	for _, name := range list {
		if strings.HasPrefix(name, prefix) {
			n++
		}
	}
	return n
}

// A trace that arrived just before the hub ended is merged after its restart.
func TestTraceSurvivesTheHub(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	m := h.extents(h.pushReady("a:1", image(startsTar(10))).Tree)
	h.Starts().Timing.MergeDelay = time.Hour
	read := filesOf(t, m)[3]
	if err := h.origins().SendTrace(t.Context(), m.ID(), trace.Trace{Reads: []trace.Read{read}}); err != nil {
		t.Fatal(err)
	}
	h.stop()
	next := openHub(t, h.config)
	j, err := next.Catalog().Jobs.Open(t.Context(), catalog.LayoutJob, m.ID().String())
	if err != nil || time.Until(j.RunAt) < time.Minute {
		t.Fatalf("layout job %+v, %v, want it queued", j, err)
	}
	if err := next.Catalog().Jobs.Retry(t.Context(), j.N); err != nil { // otherwise the job runs after an hour
		t.Fatal(err)
	}
	h = runHub(t, next)
	h.await(m.ID())
	if packs, in := h.startups(m); len(packs) != 1 || in[3] != 0 {
		t.Errorf("packs %+v with the files %v, want one with file 3", packs, in)
	}
}

// The next image in a repository inherits the recordings: its first startup pack has the recorded
// files, also those that have moved.
func TestNextImageInheritsTraces(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	m := h.extents(h.pushReady("a:1", image(startsTar(10))).Tree)
	h.traced(m, 1, 5, 8)
	change := tarball.Of(tarball.Dir("c"), tarball.File("c/moved", noise(15, 200_000)), tarball.Whiteout("d/f5"),
		tarball.File("d/f8", noise(99, 200_000)))
	next := h.extents(h.pushReady("a:2", image(startsTar(10), change)).Tree)
	// The files of the next image are c/moved, d/f0 to d/f4, and d/f6 to d/f9.
	packs, in := h.startups(next)
	if len(packs) != 1 || fmt.Sprint(in) != "[0 -1 0 -1 -1 -1 -1 -1 0 -1]" {
		t.Errorf("packs %+v with the files %v, want one with c/moved, d/f1 and d/f8", packs, in)
	}
	if packs, in := h.startups(h.extents(h.pushReady("b:1", image(startsTar(30))).Tree)); slices.Contains(in, 0) {
		t.Errorf("an image of another repository has packs %+v with the files %v, want none", packs, in)
	}
}

// A new image gets startup packs from a guess by its config and its files: here a script and its
// interpreter. Once starts are known, they decide what is fetched at mount.
func TestGuess(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	program := func(name, text string) tarball.Item { return tarball.File(name, text, tarball.Mode(0o755)) }
	i := image(tarball.Of(tarball.Dir("bin"), program("bin/other", "#!/bin/none\n"+noise(1, 30_000)),
		program("bin/run", "#!/bin/tool -x\n"+noise(2, 30_000)),
		program("bin/tool", "#!/bin/none\n"+noise(3, 30_000))))
	i.runs = v1.ImageConfig{Entrypoint: []string{"run"}, Env: []string{"PATH=/none:/bin"}}
	m := h.extents(h.pushReady("a:1", i).Tree)
	packs, in := h.startups(m)
	if len(packs) != 1 || !packs[0].AtMount || fmt.Sprint(in) != "[-1 0 0]" {
		t.Errorf("packs of the guess: %+v with the files %v, want one with bin/run and bin/tool", packs, in)
	}
	h.traced(m, 0)
	if packs, in = h.startups(m); in[0] != 0 || !packs[0].AtMount || in[1] == 0 || in[2] == 0 {
		t.Errorf("after a start, packs %+v with the files %v, want only bin/other in the first", packs, in)
	}
}
