package hub_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"lighter/test/testkit/tarball"
)

// words returns text that higher levels compress better.
func words(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%x %s ", r.IntN(500), []string{"open", "read", "lorem ipsum", "close"}[r.IntN(4)])
	}
	return b.String()[:n]
}

// recompressed waits until neither a layout nor a recompression of the image is pending.
func (h *testHub) recompressed(name string) {
	h.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		all, err := h.client.Starts(h.t.Context(), name, "")
		if err != nil || len(all) != 1 {
			h.t.Fatalf("starts of %s: %+v, %v, want those of one image", name, all, err)
		}
		if !all[0].Pending {
			return
		}
		if time.Now().After(end) {
			h.t.Fatalf("the startup packs of %s are not recompressed after 2 minutes", name)
		}
	}
}

// When a layout has not changed for a while, its startup packs are recompressed: they get smaller,
// and have the same chunks. The previous packs are still served.
func TestStartupPacksAreRecompressed(t *testing.T) {
	t.Parallel()
	h := openHub(t, hubConfig(t))
	h.Starts().Timing.MergeDelay, h.Starts().Timing.Recompress = 0, 0
	th := runHub(t, h)
	entries := []tarball.Item{tarball.Dir("d")}
	for i := range uint64(6) {
		entries = append(entries, tarball.File(fmt.Sprintf("d/f%d", i), words(i, 200_000)))
	}
	got := th.pushReady("a:1", image(tarball.Of(entries...)))
	m := th.extents(got.Tree)
	before := files(t, objectsDir(h.Config()))
	th.traced(m, 4, 2, 1)
	th.recompressed("a:1")
	packs, in := th.startups(m)
	if len(packs) != 1 || fmt.Sprint(in) != "[-1 0 0 -1 0 -1]" {
		t.Fatalf("startup packs %+v with the files %v, want one with the files 1, 2 and 4", packs, in)
	}
	previous := ""
	for _, name := range files(t, objectsDir(h.Config())) {
		if strings.HasPrefix(name, "packs/") && !slices.Contains(before, name) &&
			name != "packs/"+packs[0].Pack.String() {
			previous += name
		}
	}
	info, err := os.Stat(filepath.Join(objectsDir(h.Config()), previous))
	if err != nil || previous == "" {
		t.Fatalf("there are no packs from before recompression: %q, %v", previous, err)
	}
	if packs[0].Bytes() >= info.Size()*98/100 {
		t.Errorf("%d bytes were recompressed to %d, want less than 98 %%", info.Size(), packs[0].Bytes())
	}
	th.fetchTree(got.Chain)
	if problems := th.problems("a:1"); problems != "" {
		t.Errorf("verify: %s", problems)
	}
	if status, _, _ := th.do("GET", "/lighter/1/default/"+previous+"/0", nil); status != 200 {
		t.Errorf("a unit of the previous packs: %d, want 200", status)
	}
	laid := h.Starts().Counts().Laid
	th.traced(m, 4, 2, 1)
	th.recompressed("a:1")
	if again, _ := th.startups(m); h.Starts().Counts().Laid != laid || again[0].Pack != packs[0].Pack {
		t.Errorf("the same trace again leads to another layout: packs %+v, want %+v", again, packs)
	}
}

// A recompression that finds a newer layout does not replace it.
func TestNewerLayoutIsNotRecompressed(t *testing.T) {
	t.Parallel()
	h := openHub(t, hubConfig(t))
	h.Starts().Timing.MergeDelay, h.Starts().Timing.Recompress = 0, time.Second
	th := runHub(t, h)
	m := th.extents(th.pushReady("a:1", image(startsTar(10))).Tree)
	th.traced(m, 1, 2)
	newer, err := h.Catalog().Starts.Layout(t.Context(), m.ID())
	if err != nil {
		t.Fatal(err)
	}
	newer.Startup = []byte("newer")
	if err := h.Catalog().Starts.SetLayout(t.Context(), &newer); err != nil {
		t.Fatal(err)
	}
	th.recompressed("a:1")
	if got, err := h.Catalog().Starts.Layout(t.Context(), m.ID()); err != nil || string(got.Startup) != "newer" ||
		got.Locations != newer.Locations {
		t.Errorf("the layout is %+v, %v, want the newer one", got, err)
	}
}

// Packs whose recompression was pending when the hub ended are recompressed after its restart, and
// not again after a trace that changes nothing.
func TestRecompressionAfterRestart(t *testing.T) {
	t.Parallel()
	h := openHub(t, hubConfig(t))
	h.Starts().Timing.MergeDelay, h.Starts().Timing.Recompress = 0, time.Hour
	th := runHub(t, h)
	var entries []tarball.Item
	for i := range uint64(4) {
		entries = append(entries, tarball.File(fmt.Sprintf("f%d", i), words(i, 200_000)))
	}
	m := th.extents(th.pushReady("a:1", image(tarball.Of(entries...))).Tree)
	th.traced(m, 2, 1)
	before, _ := th.startups(m)
	th.stop()
	h = openHub(t, h.Config())
	h.Starts().Timing.MergeDelay, h.Starts().Timing.Recompress = 0, 0
	th = runHub(t, h)
	j, err := h.Catalog().Jobs.Open(t.Context(), "recompress", m.ID().String())
	if err == nil {
		err = h.Catalog().Jobs.Retry(t.Context(), j.N) // otherwise the job runs after an hour
	}
	if err != nil {
		t.Fatal(err)
	}
	th.recompressed("a:1")
	th.traced(m, 2, 1)
	th.recompressed("a:1")
	if after, _ := th.startups(m); len(after) != len(before) || after[0].Bytes() >= before[0].Bytes() ||
		h.Starts().Counts().Laid != 0 {
		t.Errorf("startup packs before %+v, after %+v, want as many smaller ones, and no new layout", before, after)
	}
}

// Recompression does not delay layouts, sweeps, or the recording of uses.
func TestLayoutsDoNotWaitForRecompression(t *testing.T) {
	dir := t.TempDir()
	begun, blocked := filepath.Join(dir, "begun"), filepath.Join(dir, "blocked")
	if err := syscall.Mkfifo(blocked, 0o600); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\n/bin/touch " + begun + "\nread _ <" + blocked + "\nexit 1\n" // until the test opens the pipe
	if err := os.WriteFile(filepath.Join(dir, "zstd"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	h := openHub(t, hubConfig(t))
	h.Starts().Timing.MergeDelay, h.Starts().Timing.Recompress = 0, 0
	th := runHub(t, h)
	th.traced(th.extents(th.pushReady("a:1", image(startsTar(10))).Tree), 1, 2)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(begun); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the recompression has not begun within 10 s")
		}
	}
	m := th.extents(th.pushReady("b:1", image(startsTar(40))).Tree)
	th.traced(m, 3)
	if packs, in := th.startups(m); len(packs) != 1 || in[3] != 0 {
		t.Errorf("while a tree is recompressed, another has packs %+v with files %v, want file 3", packs, in)
	}
	if err := h.Starts().Sweep(t.Context(), time.Now().Add(-time.Hour)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(begun); err != nil {
		t.Error(err)
	}
	pipe, err := os.OpenFile(blocked, os.O_WRONLY, 0) // waits for the script
	if err != nil {
		t.Fatal(err)
	}
	pipe.Close()
	th.recompressed("a:1")
}
