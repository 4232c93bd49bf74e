package hub

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/trace"
	"lighter/hub/catalog"
	wire "lighter/store/hub"
	"lighter/test/testkit/tarball"
)

// startsTar is a layer of files that are a few chunks each, f0 to f9.
func startsTar(first uint64) []byte {
	entries := []tarball.Item{tarball.Dir("d")}
	for i := range uint64(10) {
		entries = append(entries, tarball.File(fmt.Sprintf("d/f%d", i), noise(first+i, 200_000)))
	}
	return tarball.Of(entries...)
}

// startsHub is a hub that lays trees out as soon as there is a trace.
func startsHub(t *testing.T) *testHub {
	t.Helper()
	h := openHub(t, hubConfig(t))
	h.starts.Settling = 0
	return runHub(t, h)
}

// extents returns the extent map of a tree, as a node gets it.
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

func (h *testHub) origins() *wire.Origins {
	return wire.NewOrigins(slog.New(slog.DiscardHandler), h.client)
}

// files returns where the files of the tree lie on the device, in its order.
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

// laid sends a trace of these files of the tree, and waits for the layout.
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

func (h *testHub) await(tree chunk.ID) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 30*time.Second)
	defer cancel()
	if err := h.starts.Await(ctx, tree); err != nil {
		h.t.Fatal(err)
	}
}

// startups returns the startup packs of a tree, and for each file the pack that
// has all of it, -1: none.
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

// What a start has read is in a startup pack afterwards, of which every chunk is
// what it was; what was counted of the image does not change.
func TestTraceBecomesStartupPack(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	h.push("a:1", image(startsTar(10)))
	got := h.ready("a:1")
	m := h.extents(got.Tree)
	packs, _ := h.startups(m)
	path := "/lighter/1/default/locations/" + got.Tree
	_, _, before := h.do("GET", path, nil)
	guess := len(packs)
	inspected := h.inspect("a:1")

	h.traced(m, 7, 2, 4)
	packs, in := h.startups(m)
	if len(packs) != 1 || !packs[0].AtMount || len(packs[0].Triggers) != 0 || fmt.Sprint(in) != "[-1 -1 0 -1 0 -1 -1 0 -1 -1]" {
		t.Fatalf("after %d packs there are %+v, which have the files %v", guess, packs, in)
	}
	h.fetchTree(got.Chain)
	if problems := h.problems("a:1"); problems != "" {
		t.Errorf("verify: %s", problems)
	}
	after := h.inspect("a:1")
	if after.StartupPacks != 1 || after.StartupBytes < packs[0].Bytes || after.StartupBytes > packs[0].Bytes+1000 {
		t.Errorf("inspect says %d startup packs of %d bytes, the locations %+v", after.StartupPacks, after.StartupBytes, packs)
	}
	after.StartupPacks, after.StartupBytes, after.IndexWire = inspected.StartupPacks, inspected.StartupBytes, inspected.IndexWire
	if fmt.Sprintf("%+v", after) != fmt.Sprintf("%+v", inspected) {
		t.Errorf("inspect said\n%+v, now\n%+v", inspected, after)
	}
	_, _, now := h.do("GET", path, nil)
	if status, _, _ := h.do("GET", path, nil, "If-None-Match", before.Get("ETag")); status != 200 || now.Get("ETag") == before.Get("ETag") {
		t.Errorf("whoever has the former locations gets %d", status)
	}
	if status, _, _ := h.do("GET", path, nil, "If-None-Match", now.Get("ETag")); status != http.StatusNotModified {
		t.Errorf("whoever has these locations gets %d", status)
	}

	// The same again changes nothing; the hub that is started anew neither.
	list := files(t, objectsDir(h.config.Root))
	h.traced(m, 7, 2, 4)
	if again := files(t, objectsDir(h.config.Root)); !slices.Equal(list, again) {
		t.Errorf("the same trace again: there was\n%q, is\n%q", list, again)
	}
	h = h.restart()
	if packs, again := h.startups(m); len(packs) != 1 || fmt.Sprint(in) != fmt.Sprint(again) {
		t.Errorf("after a restart: %+v, %v", packs, again)
	}
	if n := countWith(list, "locations/"); n != 1 {
		t.Errorf("%d locations are there for one tree: %q", n, list)
	}
}

func (h *testHub) inspect(name string) wire.Inspection {
	h.t.Helper()
	for range 100 {
		found, err := h.client.Inspect(h.t.Context(), name)
		if err != nil || len(found) != 1 {
			h.t.Fatalf("%+v, %v", found, err)
		}
		if found[0].Blobs != 0 { // counted
			return found[0]
		}
		time.Sleep(20 * time.Millisecond)
	}
	h.t.Fatal("the image's sizes are not counted")
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

// A trace that came just before the hub ended is looked at after it.
func TestTraceSurvivesTheHub(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	h.push("a:1", image(startsTar(10)))
	m := h.extents(h.ready("a:1").Tree)
	h.starts.Settling = time.Hour
	read := filesOf(t, m)[3]
	if err := h.origins().SendTrace(t.Context(), m.ID(), trace.Trace{Reads: []trace.Read{read}}); err != nil {
		t.Fatal(err)
	}
	h.stop()
	next := openHub(t, h.config)
	if due, err := next.catalog.DueOf(t.Context(), m.ID()); err != nil || due.At.IsZero() {
		t.Fatalf("due is %+v, %v", due, err)
	}
	if err := next.catalog.Settle(t.Context(), m.ID(), -1, time.Now()); err != nil { // an hour later
		t.Fatal(err)
	}
	h = runHub(t, next)
	h.await(m.ID())
	if packs, in := h.startups(m); len(packs) != 1 || in[3] != 0 {
		t.Errorf("%+v, %v", packs, in)
	}
}

// The next image in a repository starts as the former did: files of the same path,
// and those that have moved, are in its startup pack before anything has run.
func TestNextImageInheritsTraces(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	h.push("a:1", image(startsTar(10)))
	m := h.extents(h.ready("a:1").Tree)
	h.traced(m, 1, 5, 8)
	change := tarball.Of(tarball.Dir("c"), tarball.File("c/moved", noise(15, 200_000)), tarball.Whiteout("d/f5"), tarball.File("d/f8", noise(99, 200_000)))
	h.push("a:2", image(startsTar(10), change))
	next := h.extents(h.ready("a:2").Tree)
	// c/moved, d/f0 to f4, d/f6 to f9
	packs, in := h.startups(next)
	if len(packs) != 1 || fmt.Sprint(in) != "[0 -1 0 -1 -1 -1 -1 -1 0 -1]" {
		t.Errorf("%+v, %v", packs, in)
	}
	h.push("b:1", image(startsTar(30)))
	if packs, in := h.startups(h.extents(h.ready("b:1").Tree)); slices.Contains(in, 0) {
		t.Errorf("another repository: %+v, %v", packs, in)
	}
}

// Whatever nodes send costs bounded bytes of its own image, and no other image
// anything.
func TestAbsurdTraces(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	h.push("a:1", image(startsTar(10)))
	h.push("b:1", image(startsTar(40)))
	got, other := h.ready("a:1"), h.ready("b:1")
	m, unharmed := h.extents(got.Tree), h.extents(other.Tree)
	h.traced(unharmed, 3)
	_, want := h.startups(unharmed)

	// The whole image, of which much is read twice.
	all := []int{9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2, 3}
	h.traced(m, all...)
	h.fetchTree(got.Chain)
	// Nonsense: each page of the device, in an order that nothing has.
	tr := trace.Trace{Tree: m.ID()}
	for i := range int64(20_000) {
		tr.Reads = append(tr.Reads, trace.Read{Offset: i * 7919 % (m.DeviceSize / 4096) * 4096, Length: 4096})
	}
	if err := h.origins().SendTrace(t.Context(), m.ID(), tr); err != nil {
		t.Fatal(err)
	}
	h.await(m.ID())
	h.fetchTree(got.Chain)

	// Thousands at once, while the image is taken away and comes back.
	var senders sync.WaitGroup
	statuses := make([]int, 600)
	body := trace.Trace{Reads: filesOf(t, m)[:3]}.Encode()
	for i := range 8 {
		senders.Go(func() {
			for n := i; n < len(statuses); n += 8 {
				statuses[n], _, _ = h.do("POST", "/lighter/1/default/traces/"+got.Tree, body)
			}
		})
	}
	if err := h.client.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	h.push("a:1", image(startsTar(10)))
	senders.Wait()
	h.ready("a:1")
	for _, status := range statuses {
		if status != 204 && status != 404 && status != 429 {
			t.Fatalf("statuses are %v", statuses)
		}
	}
	h.await(m.ID())
	h.fetchTree(got.Chain)
	if problems := h.problems("a:1"); problems != "" {
		t.Errorf("verify: %s", problems)
	}
	if _, in := h.startups(unharmed); fmt.Sprint(in) != fmt.Sprint(want) {
		t.Errorf("another image's startup packs have the files %v, and had %v", in, want)
	}
	if held, err := h.catalog.StartHoldings(t.Context()); err != nil || held.TraceBytes > 1<<20 || held.PackBytes > 32<<20 {
		t.Errorf("%+v is kept, %v", held, err)
	}
}

// Packs that no locations name any more are served for a while and then go, with
// the traces of images that were taken away. What is there once more stays.
func TestStartupPacksHaveTheirTime(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	h.push("a:1", image(startsTar(10)))
	got := h.ready("a:1")
	m := h.extents(got.Tree)
	h.traced(m, 1, 2)
	first, _ := h.startups(m)
	for range 3 { // another way to start, more often
		h.traced(m, 2, 6, 7, 8, 9)
	}
	second, _ := h.startups(m)
	if len(first) != 1 || slices.ContainsFunc(second, func(s index.Startup) bool { return s.Pack == first[0].Pack }) {
		t.Fatalf("there was %+v, is %+v", first, second)
	}
	unit := func(s index.Startup) string { return "/lighter/1/default/packs/" + s.Pack.String() + "/0" }
	sweep := func(before time.Time) {
		if err := h.starts.Sweep(t.Context(), before); err != nil {
			t.Fatal(err)
		}
	}
	sweep(time.Now().Add(-time.Hour))
	h.expect(unit(first[0]), 200)
	sweep(time.Now().Add(time.Hour))
	h.expect(unit(first[0]), 404)
	h.expect(unit(second[0]), 200)

	if err := h.client.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	sweep(time.Now().Add(-time.Hour))
	h.push("a:1", image(startsTar(10)))
	h.ready("a:1")
	if again, _ := h.startups(m); fmt.Sprint(again) != fmt.Sprint(second) {
		t.Errorf("the image came back with %+v, and had %+v", again, second)
	}
	if err := h.client.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	h.starts.Keep = -time.Hour
	sweep(time.Now().Add(time.Hour))
	h.await(m.ID())
	sweep(time.Now().Add(time.Hour))
	h.expect(unit(second[0]), 404)
	if held, err := h.catalog.StartHoldings(t.Context()); err != nil || held != (catalog.StartHoldings{}) {
		t.Errorf("left: %+v, %v", held, err)
	}
}

// What was exported does the same for an image that has the files, on another hub.
func TestTracesAreShownExportedAndImported(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	h.push("a:1", image(startsTar(10)))
	m := h.extents(h.ready("a:1").Tree)
	h.traced(m, 7, 2, 4)
	h.traced(m, 2, 4, 7) // the same workload
	h.traced(m, 0, 2)
	shown, err := h.client.Starts(t.Context(), "a:1", "")
	if err != nil || len(shown) != 1 || len(shown[0].Workloads) != 2 || len(shown[0].Packs) == 0 {
		t.Fatalf("%+v, %v", shown, err)
	}
	first := shown[0].Workloads[0]
	if first.Starts != 2 || first.Files != 3 || first.Ranges != 3 || first.Bytes < 600_000 || first.First[0] != "/d/f2" || len(first.Packs) == 0 {
		t.Errorf("the first workload is %+v", first)
	}
	text, err := h.client.ExportTraces(t.Context(), "a:1", "")
	if err != nil || !strings.Contains(string(text), " /d/f7 ") {
		t.Fatalf("exported:\n%s\n%v", text, err)
	}

	other := startsHub(t)
	other.push("b:1", image(startsTar(50), startsTar(10)))
	got := other.extents(other.ready("b:1").Tree)
	if err := other.client.ImportTraces(t.Context(), "b:1", "linux/amd64", text); err != nil {
		t.Fatal(err)
	}
	other.await(got.ID())
	_, want := h.startups(m)
	if _, in := other.startups(got); fmt.Sprint(in) != fmt.Sprint(want) {
		t.Errorf("startup packs have the files %v, on the first hub %v", in, want)
	}
	again, err := other.client.ExportTraces(t.Context(), "b:1", "")
	if err != nil || string(again) != string(text) {
		t.Errorf("exported again:\n%s\n%v", again, err)
	}

	for path, status := range map[string]int{
		"traces": 400, "traces?name=c:1": 404, "traces/export?name=c:1": 404, "traces?name=a:1&platform=linux/s390x": 404,
	} {
		h.expect("/lighter/1/default/"+path, status)
	}
	for body, status := range map[string]int{"": 400, "lighter trace 1\n": 204, "lighter trace 1\nstarts 0\n": 400, strings.Repeat("x", trace.MaxText+1): 413} {
		if got, said, _ := h.do("POST", "/lighter/1/default/traces/import?name=a:1", []byte(body)); got != status {
			t.Errorf("import of %.40q: %d %s", body, got, said)
		}
	}
}

// A startup pack that is damaged is found, and nothing else is wrong for it.
func TestVerifyReadsStartupPacks(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	h.push("a:1", image(startsTar(10)))
	m := h.extents(h.ready("a:1").Tree)
	h.traced(m, 1, 2, 3)
	packs, _ := h.startups(m)
	file := filepath.Join(objectsDir(h.config.Root), "packs", packs[0].Pack.String())
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	bad := bytes.Clone(good)
	bad[len(bad)/2] ^= 1
	write(t, file, bad)
	if problems := h.problems("a:1"); !strings.HasPrefix(problems, "startup pack "+packs[0].Pack.String()) || strings.Contains(problems, "locations") {
		t.Errorf("verify: %q", problems)
	}
	write(t, file, good)
	if problems := h.problems("a:1"); problems != "" {
		t.Errorf("verify: %q", problems)
	}
}

// A mirror has the startup packs too, and after the next copy those of now.
func TestMirrorHasStartupPacks(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	h.push("a:1", image(startsTar(10)))
	got := h.ready("a:1")
	m := h.extents(got.Tree)
	dir := t.TempDir()
	h.mirror(dir, "a:1")
	h.traced(m, 1, 2, 3)
	h.mirror(dir, "a:1")
	mirror := serveFiles(t, dir)
	fetchTree(t, mirror, got.Chain, false)
	packs, _ := h.startups(m)
	locations := fetchLocations(t, wire.NewOrigins(slog.New(slog.DiscardHandler), mirror), m.Header)
	if fmt.Sprint(locations.Startups()) != fmt.Sprint(packs) {
		t.Errorf("the mirror has %+v, the hub %+v", locations.Startups(), packs)
	}
	for n := range packs[0].Units {
		if _, err := os.Stat(filepath.Join(dir, "lighter/1/default/packs", chunk.Unit{Pack: packs[0].Pack, N: uint32(n)}.String())); err != nil {
			t.Error(err)
		}
	}
	// Nodes whose cache has chunks of ordinary units, and whose locations are older.
	if status, _, _ := h.do("GET", "/lighter/1/default/packs/"+packs[0].Pack.String()+"/0", nil); status != 200 {
		t.Error("the hub does not have it")
	}
}
