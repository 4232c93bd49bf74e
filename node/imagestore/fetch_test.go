package imagestore

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"lighter/wire"
)

// unavailable is an error of a hub that gives no answer.
type unavailable struct{}

func (unavailable) Error() string             { return "503 Service Unavailable" }
func (unavailable) RetryAfter() time.Duration { return 0 }
func (unavailable) Missed() bool              { return false }

// A round ends soon if the hub goes away during it, and says so. The next round goes on.
func TestHubGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, dir := newHub(), t.TempDir()
		for n := range 40 {
			h.add(t, fmt.Sprintf("reg.example.org/%d:1", n), fmt.Sprint(n))
		}
		s := h.open(t, dir)
		h.hangs = true
		start := time.Now()
		if err := s.update(t.Context()); err == nil {
			t.Error("the round does not say that the hub is away")
		}
		if took := time.Since(start); took > 2*imageTimeout {
			t.Errorf("the round took %s, want %s at most", took, 2*imageTimeout)
		}
		if status := s.Status(); status.Away == "" || status.Skipped != 40 || !status.Listed.IsZero() {
			t.Errorf("got status %+v, want 40 skipped images, and why", status)
		}
		h.hangs = false
		update(t, s)
		if status := s.Status(); status.Away != "" || status.Skipped != 0 || status.Images != 40 {
			t.Errorf("got status %+v, want 40 images", status)
		}
	})
}

// An image whose name another image has in the store is fetched once. It gets the name when that
// image is gone. A round ends however many such images there are.
func TestNamesOfOthers(t *testing.T) {
	h := newHub()
	const images = batchSize + 10
	for n := range images {
		h.add(t, fmt.Sprintf("%03d:1", n), fmt.Sprint(n))
		h.add(t, fmt.Sprintf("localhost/%03d:1", n), fmt.Sprint(n, " of localhost"))
	}
	s := h.open(t, t.TempDir())
	for range 2 {
		if update(t, s); s.Status().Images != images || h.fetched.Load() != 2*images {
			t.Fatalf("%d images after %d requests, want %d after %d", s.Status().Images, h.fetched.Load(), images,
				2*images)
		}
	}
	h.images = slices.DeleteFunc(h.images, func(i wire.Image) bool { return i.Name == "007:1" })
	update(t, s)
	chain := h.images[slices.IndexFunc(h.images, func(i wire.Image) bool { return i.Name == "localhost/007:1" })].Chain
	if !slices.ContainsFunc(s.list.Images, func(k known) bool { return k.Chain == chain }) {
		t.Error("the image does not have the name that has become free")
	}
}

// Images that a hub never gives, although it answers about others, do not keep these from the
// store.
func TestHubGivesSomeImages(t *testing.T) {
	h, dir := newHub(), t.TempDir()
	h.broken = fmt.Errorf("get the config: %w", unavailable{})
	for n := range 20 {
		i := h.add(t, fmt.Sprintf("reg.example.org/%02d:1", n), fmt.Sprint(n))
		if n < 10 {
			delete(h.contents, i.Digest)
		}
	}
	s := h.open(t, dir)
	for rounds := 20; rounds > 0 && s.Status().Images < 10; rounds-- {
		if err := s.update(t.Context()); err == nil {
			t.Fatal("the failure is not reported")
		}
	}
	if status := s.Status(); status.Images != 10 || status.Skipped != 10 {
		t.Errorf("got status %+v, want 10 images, and 10 skipped ones", status)
	}
	// The last one of those that have failed is tried again, although the others still fail.
	h.add(t, "reg.example.org/09:1", "9")
	for rounds := 20; rounds > 0 && s.Status().Images < 11; rounds-- {
		if err := s.update(t.Context()); err == nil {
			t.Fatal("the failure is not reported")
		}
	}
	if status := s.Status(); status.Images != 11 || status.Skipped != 9 {
		t.Errorf("got status %+v, want 11 images, and 9 skipped ones", status)
	}
	h.broken = errors.New("no contents") // the hub answers
	if err := s.update(t.Context()); err == nil || s.Status().Away != "" || s.Status().Skipped != 9 {
		t.Errorf("got %v, status %+v, want 9 skipped images, and a hub that is not away", err, s.Status())
	}
}
