package hub_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"lighter/bytesize"
	"lighter/format/index"
	"lighter/store/origin"
	"lighter/wire"
	"lighter/wire/client"

	"lighter/hub"
)

// hubWithRoom runs a hub whose startup_bytes is bytes. It makes layouts as soon as there is a
// trace, and does not recompress.
func hubWithRoom(t *testing.T, bytes int64) (hub.Config, *testHub) {
	t.Helper()
	c := hubConfig(t)
	c.StartupBytes = bytesize.Size(bytes)
	h := openHub(t, c)
	h.Starts().Timing.MergeDelay, h.Starts().Timing.Recompress = 0, time.Hour
	return c, runHub(t, h)
}

// If startup_bytes is too low for all startup packs, the least recently used images lose theirs.
// These images can be read as before, and get startup packs again when they are used.
func TestQuota(t *testing.T) {
	t.Parallel()
	const limit = 3_400_000 // bytes: four trees have startup packs of 800,000 each
	c, h := hubWithRoom(t, limit)
	var trees []*index.Map
	add := func(i int) {
		name := fmt.Sprintf("a%d:1", i)
		h.push(name, image(startsTar(uint64(10+20*i))))
		trees = append(trees, h.extents(h.ready(name).Tree))
		h.traced(trees[i], 1, 2, 3, 4)
	}
	// withPacks waits until all layouts are made, and returns the numbers of the trees that have
	// startup packs.
	withPacks := func() (have string) {
		h.t.Helper()
		if err := h.Starts().Sweep(t.Context(), time.Now().Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
		for i, m := range trees {
			h.await(m.ID())
			layout, err := h.Catalog().Starts.Layout(t.Context(), m.ID())
			if err != nil {
				t.Fatal(err)
			}
			if len(layout.Packs) > 0 {
				have += fmt.Sprint(i)
			}
		}
		return have
	}
	for i := range 4 {
		add(i)
	}
	if have := withPacks(); have != "0123" {
		t.Fatalf("trees %s have packs, want 0123", have)
	}
	h.startups(trees[0]) // requests locations as a node does, so the tree counts as used
	withPacks()
	copies, err := origin.New(slog.New(slog.DiscardHandler),
		client.Options{URL: h.url, Header: http.Header{wire.CopyHeader: {"1"}}})
	if err != nil {
		t.Fatal(err)
	}
	fetchLocations(t, copies, trees[1].Header) // a request with this header does not count as a use
	withPacks()
	add(4)
	if have := withPacks(); have != "0234" {
		t.Fatalf("trees %s have packs, want 0234: tree 1 was used least recently", have)
	}
	if held, err := h.Catalog().Starts.StartHoldings(t.Context()); err != nil || held.Live > limit || held.Lost != 1 {
		t.Errorf("the hub keeps %+v, %v, want at most %d bytes and one tree that lost its packs", held, err, limit)
	}
	chain := h.ready("a1:1").Chain
	h.fetchTree(chain)
	if problems := h.problems("a1:1"); problems != "" {
		t.Errorf("verify: %s", problems)
	}
	if have := withPacks(); have != "0234" {
		t.Errorf("trees %s have packs, want 0234: tree 1 was used, but lost its packs too recently", have)
	}
	if shown, err := h.client.Starts(t.Context(), "a1:1", ""); err != nil || shown[0].Lost.IsZero() ||
		len(shown[0].Workloads) != 1 || len(shown[0].Packs) != 0 {
		t.Errorf("starts of a1:1: %+v, %v, want one workload and lost packs", shown, err)
	}

	h.stop()
	next := openHub(t, c)
	next.Starts().Timing.MergeDelay, next.Starts().Timing.Regain = 0, -time.Hour
	h = runHub(t, next)
	h.fetchTree(chain)
	withPacks()
	if have := withPacks(); have != "0134" {
		t.Errorf("trees %s have packs, want 0134: tree 1 was used, and tree 2 was used least recently", have)
	}
	if shown, err := h.client.Starts(t.Context(), "a1:1", ""); err != nil || !shown[0].Lost.IsZero() ||
		len(shown[0].Packs) == 0 {
		t.Errorf("starts of a1:1: %+v, %v, want packs", shown, err)
	}
}

// Startup packs of removed images count in startup_bytes, too.
func TestQuotaWithRemovedImages(t *testing.T) {
	t.Parallel()
	const limit = 2_500_000 // bytes: three trees have startup packs of 800,000 each
	_, h := hubWithRoom(t, limit)
	var first *index.Map
	for i := range 5 {
		name := fmt.Sprintf("a%d:1", i)
		h.push(name, image(startsTar(uint64(10+20*i))))
		m := h.extents(h.ready(name).Tree)
		h.traced(m, 1, 2, 3, 4)
		if i == 0 {
			first = m
		}
		if err := h.client.Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if err := h.Starts().Sweep(t.Context(), time.Now().Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
		h.await(first.ID())
	}
	if held, err := h.Catalog().Starts.StartHoldings(t.Context()); err != nil || held.Live > limit {
		t.Errorf("the hub keeps %+v, %v, want at most %d bytes", held, err, limit)
	}
	h.pushReady("a0:1", image(startsTar(10)))
	h.await(first.ID())
	if packs, in := h.startups(first); len(packs) == 0 || in[1] < 0 {
		t.Errorf("the image was pushed again with the packs %+v with the files %v, want file 1 in one", packs, in)
	}
}

// The startup packs of one image take at most a quarter of startup_bytes.
func TestQuotaOfOneImage(t *testing.T) {
	t.Parallel()
	c, h := hubWithRoom(t, 2_000_000)
	h.push("a:1", image(startsTar(10)))
	h.push("b:1", image(startsTar(40)))
	small, large := h.extents(h.ready("a:1").Tree), h.extents(h.ready("b:1").Tree)
	h.traced(small, 1)
	h.traced(large, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	if packs, _ := h.startups(small); len(packs) == 0 {
		t.Error("the other image has lost its startup packs")
	}
	packs, in := h.startups(large)
	bytes := int64(0)
	for _, p := range packs {
		bytes += p.Bytes()
	}
	if bytes == 0 || bytes > int64(c.StartupBytes)/4+10_000 || in[0] != 0 {
		t.Errorf("%d bytes of packs with the files %v, want file 0, and at most a quarter of the limit", bytes, in)
	}
}
