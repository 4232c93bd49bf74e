package hub_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"lighter/format/index"
	"lighter/store/origin"
	"lighter/wire"
	"lighter/wire/client"

	"lighter/hub"
)

// hubWithRoom runs a hub in which startup packs have so many bytes, and are laid out at
// once.
func hubWithRoom(t *testing.T, bytes int64) (hub.Config, *testHub) {
	t.Helper()
	c := hubConfig(t)
	c.StartupBytes = bytes
	h := openHub(t, c)
	h.Starts().Timing.Settling, h.Starts().Timing.Recompress = 0, time.Hour
	return c, runHub(t, h)
}

// Where there is no room for the startup packs of all images, those lose theirs that
// were not used for longest. They can be read as before, and get some again when they
// are used.
func TestRoomForStartupPacks(t *testing.T) {
	t.Parallel()
	const limit = 3_400_000 // of 800,000 each, four
	c, h := hubWithRoom(t, limit)
	var trees []*index.Map
	add := func(i int) {
		name := fmt.Sprintf("a%d:1", i)
		h.push(name, image(startsTar(uint64(10+20*i))))
		trees = append(trees, h.extents(h.ready(name).Tree))
		h.traced(trees[i], 1, 2, 3, 4)
	}
	// who says which of the trees have startup packs, when all is laid out as it is to be.
	who := func() (have string) {
		h.t.Helper()
		if err := h.Starts().Sweep(t.Context(), time.Now().Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
		for i, m := range trees {
			h.await(m.ID())
			layout, err := h.Catalog().Layout(t.Context(), m.ID())
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
	if have := who(); have != "0123" {
		t.Fatalf("packs have %s", have)
	}
	h.startups(trees[0]) // as a node asks when the image is pulled or mounted
	who()
	copies, err := origin.New(slog.New(slog.DiscardHandler),
		client.Options{URL: h.url, Header: http.Header{wire.CopyHeader: {"1"}}})
	if err != nil {
		t.Fatal(err)
	}
	fetchLocations(t, copies, trees[1].Header)
	who()
	add(4)
	if have := who(); have != "0234" {
		t.Fatalf("packs have %s, but 1 was used least recently", have)
	}
	if held, err := h.Catalog().StartHoldings(t.Context()); err != nil || held.Live > limit || held.Lost != 1 {
		t.Errorf("%+v is kept, %v", held, err)
	}
	chain := h.ready("a1:1").Chain
	h.fetchTree(chain)
	if problems := h.problems("a1:1"); problems != "" {
		t.Errorf("verify: %s", problems)
	}
	if have := who(); have != "0234" {
		t.Errorf("packs have %s: it must not get them again so soon", have)
	}
	if shown, err := h.client.Starts(t.Context(), "a1:1", ""); err != nil || shown[0].Lost.IsZero() || len(shown[0].Workloads) != 1 || len(shown[0].Packs) != 0 {
		t.Errorf("it is shown as %+v, %v", shown, err)
	}

	h.stop()
	next := openHub(t, c)
	next.Starts().Timing.Settling, next.Starts().Timing.Regain = 0, -time.Hour
	h = runHub(t, next)
	h.fetchTree(chain)
	who()
	if have := who(); have != "0134" {
		t.Errorf("packs have %s, but 1 was used since, and 2 not for longest", have)
	}
	if shown, err := h.client.Starts(t.Context(), "a1:1", ""); err != nil || !shown[0].Lost.IsZero() || len(shown[0].Packs) == 0 {
		t.Errorf("it is shown as %+v, %v", shown, err)
	}
}

// Images that were taken away, and may come back, do not take more room.
func TestRoomOfImagesThatWereRemoved(t *testing.T) {
	t.Parallel()
	const limit = 2_500_000 // of 800,000 each, three
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
	if held, err := h.Catalog().StartHoldings(t.Context()); err != nil || held.Live > limit {
		t.Errorf("%+v is kept, %v", held, err)
	}
	h.push("a0:1", image(startsTar(10)))
	h.ready("a0:1")
	h.await(first.ID())
	if packs, in := h.startups(first); len(packs) == 0 || in[1] < 0 {
		t.Errorf("the image came back with %+v, which have the files %v", packs, in)
	}
}

// The startup packs of one image do not take the place of all others.
func TestRoomForOneImagesStartupPacks(t *testing.T) {
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
	if bytes == 0 || bytes > c.StartupBytes/4+10_000 || in[0] != 0 {
		t.Errorf("it has %d bytes of packs, which have the files %v", bytes, in)
	}
}
