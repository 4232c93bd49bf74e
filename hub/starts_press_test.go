package hub

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lighter/test/testkit/tarball"
)

// words is text that compresses, the better the more is tried.
func words(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%x %s ", r.IntN(500), []string{"open", "read", "lorem ipsum", "close"}[r.IntN(4)])
	}
	return b.String()[:n]
}

// pressed waits until the image's startup packs are what they will be.
func (h *testHub) pressed(name string) {
	h.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		all, err := h.client.Starts(h.t.Context(), name, "")
		if err != nil || len(all) != 1 {
			h.t.Fatalf("%+v, %v", all, err)
		}
		if !all[0].Pending {
			return
		}
		if time.Now().After(end) {
			h.t.Fatal("its startup packs stay as they are")
		}
	}
}

// Packs of what starts have told become smaller once they stay as they are, and hold the
// same; the former ones are still served.
func TestStartupPacksArePressed(t *testing.T) {
	t.Parallel()
	h := openHub(t, hubConfig(t))
	h.starts.Settling, h.starts.PressAfter = 0, 0
	th := runHub(t, h)
	entries := []tarball.Item{tarball.Dir("d")}
	for i := range uint64(6) {
		entries = append(entries, tarball.File(fmt.Sprintf("d/f%d", i), words(i, 200_000)))
	}
	th.push("a:1", image(tarball.Of(entries...)))
	got := th.ready("a:1")
	m := th.extents(got.Tree)
	before := files(t, objectsDir(h.config.Root))
	th.traced(m, 4, 2, 1)
	th.pressed("a:1")
	packs, in := th.startups(m)
	if len(packs) != 1 || fmt.Sprint(in) != "[-1 0 0 -1 0 -1]" {
		t.Fatalf("there are %+v with the files %v", packs, in)
	}
	former := ""
	for _, name := range files(t, objectsDir(h.config.Root)) {
		if strings.HasPrefix(name, "packs/") && !slices.Contains(before, name) && name != "packs/"+packs[0].Pack.String() {
			former += name
		}
	}
	info, err := os.Stat(filepath.Join(objectsDir(h.config.Root), former))
	if err != nil || former == "" {
		t.Fatalf("it was not laid out before it was pressed: %q, %v", former, err)
	}
	if packs[0].Bytes() >= info.Size()*98/100 {
		t.Errorf("%d bytes were pressed to %d", info.Size(), packs[0].Bytes())
	}
	th.fetchTree(got.Chain)
	if problems := th.problems("a:1"); problems != "" {
		t.Errorf("verify: %s", problems)
	}
	if status, _, _ := th.do("GET", "/lighter/1/default/"+former+"/0", nil); status != 200 {
		t.Errorf("who has the former locations gets %d", status)
	}
	laid := h.starts.Counts().Laid
	th.traced(m, 4, 2, 1)
	th.pressed("a:1")
	if again, _ := th.startups(m); h.starts.Counts().Laid != laid || again[0].Pack != packs[0].Pack {
		t.Error("the same trace again has it laid out anew")
	}
}

// A layout that is not the one whose packs were to be pressed stays as it is.
func TestNewerLayoutIsNotPressed(t *testing.T) {
	t.Parallel()
	h := openHub(t, hubConfig(t))
	h.starts.Settling, h.starts.PressAfter = 0, time.Second
	th := runHub(t, h)
	th.push("a:1", image(startsTar(10)))
	m := th.extents(th.ready("a:1").Tree)
	th.traced(m, 1, 2)
	newer, err := h.catalog.Layout(t.Context(), m.ID())
	if err != nil {
		t.Fatal(err)
	}
	newer.Startup = []byte("newer")
	if err := h.catalog.SetLayout(t.Context(), &newer); err != nil {
		t.Fatal(err)
	}
	th.pressed("a:1")
	if got, err := h.catalog.Layout(t.Context(), m.ID()); err != nil || string(got.Startup) != "newer" || got.Locations != newer.Locations {
		t.Errorf("there is %+v, %v", got, err)
	}
}

// Packs that were to be pressed when the hub ended are pressed after the next trace, also
// if that asks for the same.
func TestPressingSurvivesTheHub(t *testing.T) {
	t.Parallel()
	h := openHub(t, hubConfig(t))
	h.starts.Settling, h.starts.PressAfter = 0, time.Hour
	th := runHub(t, h)
	var entries []tarball.Item
	for i := range uint64(4) {
		entries = append(entries, tarball.File(fmt.Sprintf("f%d", i), words(i, 200_000)))
	}
	th.push("a:1", image(tarball.Of(entries...)))
	m := th.extents(th.ready("a:1").Tree)
	th.traced(m, 2, 1)
	before, _ := th.startups(m)
	th.stop()
	h = openHub(t, h.config)
	h.starts.Settling, h.starts.PressAfter = 0, 0
	th = runHub(t, h)
	for range 2 {
		th.traced(m, 2, 1)
		th.pressed("a:1")
	}
	if after, _ := th.startups(m); len(after) != len(before) || after[0].Bytes() >= before[0].Bytes() || h.starts.Counts().Laid != 0 {
		t.Errorf("there was %+v, is %+v", before, after)
	}
}
