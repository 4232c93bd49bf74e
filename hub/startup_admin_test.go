package hub_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/wire"
)

// Exported recordings have the same effect for an image with these files on another hub.
func TestTracesAreShownExportedAndImported(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	m := h.extents(h.pushReady("a:1", image(startsTar(10))).Tree)
	h.traced(m, 7, 2, 4)
	h.traced(m, 2, 4, 7) // the same workload
	h.traced(m, 0, 2)
	shown, err := h.client.Starts(t.Context(), "a:1", "")
	if err != nil || len(shown) != 1 || len(shown[0].Workloads) != 2 || len(shown[0].Packs) == 0 {
		t.Fatalf("%+v, %v", shown, err)
	}
	first := shown[0].Workloads[0]
	if first.Starts != 2 || first.Files != 3 || first.Ranges != 3 || first.Bytes < 600_000 ||
		first.First[0] != "/d/f2" || len(first.Packs) == 0 {
		t.Errorf("first workload %+v", first)
	}
	text, err := h.client.ExportTraces(t.Context(), "a:1", "")
	if err != nil || !strings.Contains(string(text), " /d/f7 ") {
		t.Fatalf("exported:\n%s\n%v", text, err)
	}

	other := startsHub(t)
	got := other.extents(other.pushReady("b:1", image(startsTar(50), startsTar(10))).Tree)
	if err := other.client.ImportTraces(t.Context(), "b:1", "linux/amd64", text); err != nil {
		t.Fatal(err)
	}
	other.await(got.ID())
	_, want := h.startups(m)
	if _, in := other.startups(got); fmt.Sprint(in) != fmt.Sprint(want) {
		t.Errorf("startup packs with the files %v, want %v as on the first hub", in, want)
	}
	again, err := other.client.ExportTraces(t.Context(), "b:1", "")
	if err != nil || string(again) != string(text) {
		t.Errorf("exported again:\n%s\n%v", again, err)
	}

	for path, status := range map[string]int{
		"traces": 400, "traces?name=c:1": 404, "traces/export?name=c:1": 404,
		"traces?name=a:1&platform=linux/s390x": 404,
	} {
		h.expect("/lighter/1/default/"+path, status)
	}
	for body, status := range map[string]int{"": 400, "lighter trace 1\n": 204, "lighter trace 1\nstarts 0\n": 400,
		strings.Repeat("x", trace.MaxText+1): 413} {
		if got, said, _ := h.do("POST", "/lighter/1/default/traces/import?name=a:1", []byte(body)); got != status {
			t.Errorf("import of %.40q: %d %s, want an error", body, got, said)
		}
	}
}

// Verification finds a damaged startup pack, and no other problem.
func TestVerifyReadsStartupPacks(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	m := h.extents(h.pushReady("a:1", image(startsTar(10))).Tree)
	h.traced(m, 1, 2, 3)
	packs, _ := h.startups(m)
	file := filepath.Join(objectsDir(h.config), "packs", packs[0].Pack.String())
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	bad := bytes.Clone(good)
	bad[len(bad)/2] ^= 1
	write(t, file, bad)
	if problems := h.problems("a:1"); !strings.HasPrefix(problems, "startup pack "+packs[0].Pack.String()) ||
		strings.Contains(problems, "locations") {
		t.Errorf("verify: %q", problems)
	}
	if shown, err := h.client.Starts(t.Context(), "a:1", ""); err != nil || len(shown[0].Workloads) != 1 ||
		len(shown[0].Workloads[0].Packs) == 0 {
		t.Errorf("%+v, %v: want the description without reading packs", shown, err)
	}
	write(t, file, good)
	if problems := h.problems("a:1"); problems != "" {
		t.Errorf("verify: %q", problems)
	}
}

// Verification reports no problem if layouts change meanwhile.
func TestVerifyWhileLayoutsChange(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	m := h.extents(h.pushReady("a:1", image(startsTar(10))).Tree)
	h.traced(m, 1, 2, 3)
	ctx, cancel := context.WithCancel(t.Context())
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel()
	all := filesOf(t, m)
	before := h.Starts().Counts().Laid
	sender.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			reads := []trace.Read{all[i%10], all[(i/10+i)%10], all[i*7%10]}
			_ = h.Starts().Take(ctx, m.ID(), "", trace.Trace{Reads: reads}.Encode()) // too many may wait
			time.Sleep(time.Millisecond)
		}
	})
	for h.Starts().Counts().Laid < before+5 {
		problems, err := h.Verifier().Verify(t.Context(), "a:1", func(wire.Progress) error { return nil })
		if err != nil || len(problems) != 0 {
			t.Fatalf("verify: %q, %v", problems, err)
		}
	}
}

// A mirror has the startup packs, and after the next run the current ones.
func TestMirrorHasStartupPacks(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	got := h.pushReady("a:1", image(startsTar(10)))
	m := h.extents(got.Tree)
	dir := t.TempDir()
	h.mirror(dir, "a:1")
	h.traced(m, 1, 2, 3)
	h.mirror(dir, "a:1")
	mirror := serveFiles(t, dir)
	fetchTree(t, mirror, got.Chain, false)
	packs, _ := h.startups(m)
	files := originsOf(t, mirror)
	locations, sum := fetchNewer(t, files, m.Header, chunk.ID{})
	if fmt.Sprint(locations.Startups()) != fmt.Sprint(packs) {
		t.Errorf("the mirror has %+v, the hub %+v", locations.Startups(), packs)
	}
	if again, same := fetchNewer(t, files, m.Header, sum); again == nil || same != sum {
		t.Error("the mirror's locations are not recognized as current")
	}
	if len(packs[0].Units) < 2 {
		t.Error("a pack has one unit only: its order is not tested")
	}
	for n, size := range packs[0].Units {
		unit, err := os.Stat(filepath.Join(dir, "lighter/1/default/packs",
			chunk.Unit{Pack: packs[0].Pack, N: uint32(n)}.String()))
		if err != nil || unit.Size() != int64(size) {
			t.Errorf("unit %d has %d bytes, want the length in the locations: %v", n, size, err)
		}
	}
	// Nodes may have chunks of ordinary units, and older locations.
	if status, _, _ := h.do("GET", "/lighter/1/default/packs/"+packs[0].Pack.String()+"/0", nil); status != 200 {
		t.Error("the hub does not have the ordinary unit")
	}
}

// A removed workload loses its startup packs. The others keep theirs.
func TestTracesAreRemoved(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	m := h.extents(h.pushReady("a:1", image(startsTar(10))).Tree)
	h.traced(m, 1, 2, 3)
	h.traced(m, 1, 2, 3)
	before, _ := h.client.ExportTraces(t.Context(), "a:1", "")
	_, want := h.startups(m)
	h.traced(m, 6, 7, 8, 9)
	shown, err := h.client.Starts(t.Context(), "a:1", "")
	if err != nil || len(shown) != 1 || len(shown[0].Workloads) != 2 {
		t.Fatalf("%+v, %v", shown, err)
	}
	bad := shown[0].Workloads[1].ID
	got, err := h.client.ForgetTraces(t.Context(), "a:1", "linux/amd64", bad[:6])
	if err != nil || len(got.Workloads) != 1 || got.Workloads[0] != bad || got.Starts != 1 {
		t.Fatalf("removed %+v, %v", got, err)
	}
	h.await(m.ID())
	if after, err := h.client.ExportTraces(t.Context(), "a:1", ""); err != nil || string(after) != string(before) {
		t.Errorf("recordings after the removal\n%s\n%v, before\n%s", after, err, before)
	}
	if _, in := h.startups(m); fmt.Sprint(in) != fmt.Sprint(want) {
		t.Errorf("startup packs with the files %v, want %v", in, want)
	}
	for query, status := range map[string]int{"": 400, "?name=b:1": 404, "?name=a:1&workload=" + bad: 404,
		"?name=a:1&platform=linux/s390x": 404} {
		if got, said, _ := h.do("DELETE", "/lighter/1/default/traces"+query, nil); got != status {
			t.Errorf("%q: %d %s, want %d", query, got, said, status)
		}
	}
	h.traced(m, 4, 5)
	if got, err := h.client.ForgetTraces(t.Context(), "a:1", "", ""); err != nil || len(got.Workloads) != 2 ||
		got.Starts != 3 {
		t.Errorf("removed %+v, %v", got, err)
	}
	h.await(m.ID())
	if packs, in := h.startups(m); slices.Max(in) >= 0 {
		t.Errorf("startup packs %+v with the files %v", packs, in)
	}
	if text, err := h.client.ExportTraces(t.Context(), "a:1", ""); err != nil || string(text) != "lighter trace 1\n" {
		t.Errorf("recordings after the removal of all: %q, %v", text, err)
	}
	// The next image in the repository does not inherit it.
	h.pushReady("a:2", image(startsTar(10), startsTar(40)))
	if text, err := h.client.ExportTraces(t.Context(), "a:2", ""); err != nil || string(text) != "lighter trace 1\n" {
		t.Errorf("recordings of the next image: %q, %v", text, err)
	}
	h.traced(m, 1)
	if shown, err := h.client.Starts(t.Context(), "a:1", ""); err != nil || len(shown[0].Workloads) != 1 {
		t.Errorf("later starts: %+v, %v, want them kept", shown, err)
	}
}
