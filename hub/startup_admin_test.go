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

// Recordings that are exported from one hub and imported for an image with the same files on
// another hub lead to the same startup packs.
func TestTracesAreShownExportedAndImported(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	m := h.extents(h.pushReady("a:1", image(startsTar(10))).Tree)
	h.traced(m, 7, 2, 4)
	h.traced(m, 2, 4, 7) // the same workload
	h.traced(m, 0, 2)
	shown, err := h.client.Starts(t.Context(), "a:1", "")
	if err != nil || len(shown) != 1 || len(shown[0].Workloads) != 2 || len(shown[0].Packs) == 0 {
		t.Fatalf("starts %+v, %v, want two workloads with packs", shown, err)
	}
	first := shown[0].Workloads[0]
	if first.Starts != 2 || first.Files != 3 || first.Ranges != 3 || first.Bytes < 600_000 ||
		first.First[0] != "/d/f2" || len(first.Packs) == 0 {
		t.Errorf("first workload %+v, want two starts that read three files, d/f2 first", first)
	}
	text, err := h.client.ExportTraces(t.Context(), "a:1", "")
	if err != nil || !strings.Contains(string(text), " /d/f7 ") {
		t.Fatalf("exported:\n%s\n%v, want /d/f7 in it", text, err)
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
		t.Errorf("exported from the second hub:\n%s\n%v, want\n%s", again, err, text)
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
			t.Errorf("import of %.40q: %d %s, want %d", body, got, said, status)
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
		t.Errorf("verify: %q, want the startup pack and no other problem", problems)
	}
	if shown, err := h.client.Starts(t.Context(), "a:1", ""); err != nil || len(shown[0].Workloads) != 1 ||
		len(shown[0].Workloads[0].Packs) == 0 {
		t.Errorf("starts %+v, %v, want the workload with its packs, also with a damaged pack", shown, err)
	}
	write(t, file, good)
	if problems := h.problems("a:1"); problems != "" {
		t.Errorf("verify after the repair: %q", problems)
	}
}

// A verification reports no problem if the layout changes meanwhile.
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
			_ = h.Starts().Take(ctx, m.ID(), "", trace.Trace{Reads: reads}.Encode()) // refused if too many traces wait
			time.Sleep(time.Millisecond)
		}
	})
	for h.Starts().Counts().Laid < before+5 {
		problems, err := h.Verifier().Verify(t.Context(), "a:1", func(wire.Progress) error { return nil })
		if err != nil || len(problems) != 0 {
			t.Fatalf("verify: %q, %v, want no problems", problems, err)
		}
	}
}

// After each run, a mirror has the current startup packs.
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
		t.Errorf("the mirror has the startup packs %+v, want those of the hub, %+v", locations.Startups(), packs)
	}
	if again, same := fetchNewer(t, files, m.Header, sum); again == nil || same != sum {
		t.Errorf("a second request for locations got those with digest %s, want %s again", same, sum)
	}
	if len(packs[0].Units) < 2 {
		t.Error("the pack has one unit, want several, to test their order")
	}
	for n, size := range packs[0].Units {
		unit, err := os.Stat(filepath.Join(dir, "lighter/1/default/packs",
			chunk.Unit{Pack: packs[0].Pack, N: uint32(n)}.String()))
		if err != nil || unit.Size() != int64(size) {
			t.Errorf("file of unit %d: %v (%v), want %d bytes", n, unit, err, size)
		}
	}
	// The hub also serves the units one by one.
	if status, _, _ := h.do("GET", "/lighter/1/default/packs/"+packs[0].Pack.String()+"/0", nil); status != 200 {
		t.Errorf("the first unit of the pack: %d, want 200", status)
	}
}

// If a workload is removed, its startup packs go. Other workloads keep theirs.
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
		t.Fatalf("starts %+v, %v, want two workloads", shown, err)
	}
	bad := shown[0].Workloads[1].ID
	got, err := h.client.ForgetTraces(t.Context(), "a:1", "linux/amd64", bad[:6])
	if err != nil || len(got.Workloads) != 1 || got.Workloads[0] != bad || got.Starts != 1 {
		t.Fatalf("removed %+v, %v, want workload %s with one start", got, err, bad)
	}
	h.await(m.ID())
	if after, err := h.client.ExportTraces(t.Context(), "a:1", ""); err != nil || string(after) != string(before) {
		t.Errorf("recordings after the removal\n%s\n%v, want\n%s", after, err, before)
	}
	if _, in := h.startups(m); fmt.Sprint(in) != fmt.Sprint(want) {
		t.Errorf("startup packs with the files %v, want %v", in, want)
	}
	for query, status := range map[string]int{"": 400, "?name=b:1": 404, "?name=a:1&workload=" + bad: 404,
		"?name=a:1&platform=linux/s390x": 404} {
		if got, said, _ := h.do("DELETE", "/lighter/1/default/traces"+query, nil); got != status {
			t.Errorf("DELETE /traces%s: %d %s, want %d", query, got, said, status)
		}
	}
	h.traced(m, 4, 5)
	if got, err := h.client.ForgetTraces(t.Context(), "a:1", "", ""); err != nil || len(got.Workloads) != 2 ||
		got.Starts != 3 {
		t.Errorf("removed %+v, %v, want two workloads with three starts", got, err)
	}
	h.await(m.ID())
	if packs, in := h.startups(m); slices.Max(in) >= 0 {
		t.Errorf("startup packs %+v with the files %v, want no files in them", packs, in)
	}
	if text, err := h.client.ExportTraces(t.Context(), "a:1", ""); err != nil || string(text) != "lighter trace 1\n" {
		t.Errorf("recordings after the removal of all: %q, %v, want none", text, err)
	}
	// The next image in the repository inherits no removed recordings.
	h.pushReady("a:2", image(startsTar(10), startsTar(40)))
	if text, err := h.client.ExportTraces(t.Context(), "a:2", ""); err != nil || string(text) != "lighter trace 1\n" {
		t.Errorf("recordings of the next image: %q, %v, want none", text, err)
	}
	h.traced(m, 1)
	if shown, err := h.client.Starts(t.Context(), "a:1", ""); err != nil || len(shown[0].Workloads) != 1 {
		t.Errorf("later starts: %+v, %v, want them kept", shown, err)
	}
}
