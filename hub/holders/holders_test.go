package holders

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/hub/report"
	"lighter/test/testkit/catalogtest"
	"lighter/wire"
)

func service(t *testing.T, grace time.Duration) (*Service, *catalog.Catalog) {
	t.Helper()
	c, err := catalog.Open(t.Context(), catalog.Place{Source: filepath.Join(t.TempDir(), "catalog.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return New(c.Holders, grace, slog.New(slog.DiscardHandler)), c
}

func held(n int, trees ...chunk.ID) wire.Held {
	return wire.Held{Holder: fmt.Sprintf("%032d", n), Kind: wire.HolderNode, Name: "host", Trees: trees}
}

// The number of all holders is bounded, and so is that of each sender's holders. All holders beyond
// a bound count as one. The hub's own machine has no bound as a sender.
func TestBounds(t *testing.T) {
	s, _ := service(t, 0)
	s.bounds = catalog.HeldBounds{Holders: 3, SenderHolders: 1, Trees: 10}
	for n, sender := range []string{"192.0.2.1/32", "", ""} {
		if _, err := s.Report(t.Context(), held(n), sender); err != nil {
			t.Errorf("report of holder %d: %v", n, err)
		}
	}
	for _, sender := range []string{"192.0.2.1/32", "192.0.2.2/32", ""} {
		if _, err := s.Report(t.Context(), held(9), sender); err != nil {
			t.Errorf("report of one more holder from %q: %v", sender, err)
		}
	}
	if c, err := s.Counts(t.Context()); err != nil || c.Accepted != 3 || c.Beyond != 3 || c.Refused != 0 ||
		c.Holders[wire.HolderPresent] != 4 {
		t.Errorf("counts %+v, %v, want three holders and one for all others", c, err)
	}
	if wire.IsHolderID(catalog.Others) {
		t.Error("a client can report as catalog.Others")
	}
	if err := s.Forget(t.Context(), "others"); err != nil {
		t.Errorf("forget the holder that stands for the holders beyond the bounds: %v", err)
	}
}

// A sender's reports are bounded in each hour, and so are the senders in memory.
func TestRate(t *testing.T) {
	s, now := NewSenders(), time.Now()
	for n := range maxReports + 1 {
		if got, want := s.count("a", now), n < maxReports; got != want {
			t.Fatalf("report %d is accepted: %v, want %v", n, got, want)
		}
	}
	if !s.count("b", now) || !s.count("", now) || !s.count("a", now.Add(reportWindow+1)) {
		t.Error("another sender, this machine, or a later report was refused")
	}
	for n := range 2 * maxSenders {
		s.count(fmt.Sprint(n), now)
	}
	if len(s.all) > maxSenders {
		t.Errorf("%d senders in memory, of at most %d", len(s.all), maxSenders)
	}
}

// Users see only a part of a holder's ID. With this part they can make the hub forget the holder.
func TestForget(t *testing.T) {
	s, c := service(t, 24*time.Hour)
	catalogtest.Publish(t, c, "one", "a")
	tree := catalogtest.TreeOf("a")
	if _, err := s.Report(t.Context(), held(1, tree), "192.0.2.1/32"); err != nil {
		t.Fatal(err)
	}
	all, err := s.Of(t.Context(), []chunk.ID{tree, tree})
	if err != nil || len(all) != 1 || len(all[0].ID) != 16 || all[0].Trees != 1 || all[0].State != wire.HolderPresent ||
		all[0].Address != "192.0.2.1/32" || all[0].Until.Sub(all[0].Seen) != 8*24*time.Hour {
		t.Fatalf("holders %+v, %v, want the node with one tree, present, until 8 days after its report", all, err)
	}
	if err := s.Forget(t.Context(), "other"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("forget an unknown holder: %v, want ErrNotFound", err)
	}
	second := wire.Held{Holder: all[0].ID + "0000000000000002", Kind: wire.HolderMirror}
	if _, err := s.Report(t.Context(), second, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.Forget(t.Context(), all[0].ID); !errors.Is(err, report.ErrInvalid) {
		t.Errorf("forget one of two holders: %v, want ErrInvalid", err)
	}
	if err := c.Holders.ForgetHolder(t.Context(), second.Holder); err != nil {
		t.Fatal(err)
	}
	other := held(1)
	other.Holder = strings.Repeat("9", 16)
	if _, err := s.Report(t.Context(), other, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.Forget(t.Context(), "99999999"); err != nil {
		t.Errorf("forget a holder by a part of its ID: %v", err)
	}
}
