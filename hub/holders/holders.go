// Package holders records which trees of the hub nodes and mirrors have. They report all their
// trees every few hours. The hub keeps these trees, also after their images were removed.
//
// A report counts for a lease of a week (wire.HeldLease), and its trees are kept for a grace period
// after that: a machine that was off for some weeks finds what it needs. Then the next collection
// forgets the holder. A hub that was itself off for longer than a lease forgets no holder within
// the lease after its restart.
//
// Any client can invent a holder. At worst, an invented holder keeps removed images, and trees that
// were made on request, on the disk. The number of holders and of their trees is bounded. Beyond
// the bounds, one holder (catalog.Others) stands for all further holders: it has the trees that
// they report, so no image is lost. The number of a sender's reports is bounded, too, and further
// reports are refused. So only clients with the same address can keep a node from reporting. An
// administrator can make the hub forget a holder.
package holders

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/hub/report"
	"lighter/sleep"
	"lighter/wire"
)

// Store has the holders. The Holders of a hub's catalog implement it.
type Store interface {
	SetHeld(
		ctx context.Context, h catalog.Holder, trees []chunk.ID, bounds catalog.HeldBounds,
	) (catalog.HeldReport, error)
	All(ctx context.Context) ([]catalog.Holder, error)
	Of(ctx context.Context, tree chunk.ID) ([]catalog.Holder, error)
	ForgetHolder(ctx context.Context, id string) error
	ExpireHolders(ctx context.Context, age time.Duration, limit int) ([]catalog.Holder, error)
	NoteServing(ctx context.Context) error
}

var _ Store = (*catalog.Holders)(nil)

// Bounds of the holders that the hub knows: in all, and of each sender.
const (
	maxHolders       = 20_000
	maxSenderHolders = 4096         // the nodes behind a proxy that is not trusted are one sender
	maxTrees         = 2_000_000    // rows of the catalog, one for each tree of a holder, of some 150 bytes
	maxSenderTrees   = maxTrees / 2 // so that one sender alone does not use up maxTrees
	// maxReports bounds the reports of one sender in each window, to all domains of a process.
	maxReports   = 3600
	reportWindow = time.Hour
	maxSenders   = 20_000 // senders whose reports are counted, in memory, of 100 bytes each

	expireBatch = 100 // holders that are forgotten in one transaction

	// noteEvery is how often the service notes that holders can report.
	noteEvery = time.Hour
)

// Service receives reports and forgets holders. It is safe for concurrent use.
type Service struct {
	// Senders counts the reports to this service, or to all services of the process. It is set
	// before the service is used.
	Senders *Senders

	store  Store
	grace  time.Duration
	log    *slog.Logger
	bounds catalog.HeldBounds

	accepted, beyond, refused atomic.Int64 // numbers of reports: see Counts
}

// Senders counts the reports of each sender, to one service or to all of a process. It is safe for
// concurrent use.
type Senders struct {
	mu  sync.Mutex // guards the following
	all map[string]reports
}

// NewSenders returns a count of no reports.
func NewSenders() *Senders { return &Senders{all: map[string]reports{}} }

// reports counts a sender's reports.
type reports struct {
	since time.Time // the begin of the current reportWindow
	n     int       // reports since then
}

// New returns a service that keeps what a holder has for its lease and the grace period after it.
func New(store Store, grace time.Duration, log *slog.Logger) *Service {
	return &Service{Senders: NewSenders(), store: store, grace: grace, log: log,
		bounds: catalog.HeldBounds{Holders: maxHolders, SenderHolders: maxSenderHolders, Trees: maxTrees,
			SenderTrees: maxSenderTrees}}
}

// Report records what a holder has, and returns the trees that the hub does not have. Errors wrap
// report.ErrInvalid, or catalog.ErrTooMany if the sender has sent too many reports. sender is the
// address or network of the client; "" is the hub's own machine, which has no bounds of its own.
func (s *Service) Report(ctx context.Context, held wire.Held, sender string) (wire.Unknown, error) {
	done, err := s.report(ctx, held, sender)
	if err != nil {
		if s.refused.Add(1); errors.Is(err, catalog.ErrTooMany) {
			s.log.Warn("report of held trees refused", "kind", held.Kind, "sender", sender, "err", err)
		}
		return wire.Unknown{}, err
	}
	if done.Exceeded != nil {
		s.beyond.Add(1)
		s.log.Warn("too many holders or trees: the trees of this holder are kept, but it is not listed",
			"kind", held.Kind, "name", held.Name, "sender", sender, "err", done.Exceeded)
	} else {
		s.accepted.Add(1)
	}
	return wire.Unknown{Trees: append([]chunk.ID{}, done.Unknown...)}, nil
}

func (s *Service) report(ctx context.Context, held wire.Held, sender string) (catalog.HeldReport, error) {
	if err := check(held); err != nil {
		return catalog.HeldReport{}, fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	if !s.Senders.count(sender, time.Now()) {
		return catalog.HeldReport{}, fmt.Errorf("%w: %s has sent %d reports in an hour", catalog.ErrTooMany, sender,
			maxReports)
	}
	bounds := s.bounds
	if sender == "" {
		bounds.SenderHolders, bounds.SenderTrees = 0, 0
	}
	return s.store.SetHeld(ctx, catalog.Holder{ID: held.Holder, Kind: held.Kind, Name: held.Name, Sender: sender},
		held.Trees, bounds)
}

func check(held wire.Held) error {
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	switch {
	case !wire.IsHolderID(held.Holder):
		return errors.New("the holder's ID is invalid: want 16 to 64 letters and digits")
	case held.Kind != wire.HolderNode && held.Kind != wire.HolderMirror:
		return fmt.Errorf("the holder's kind is %q: want %s or %s", held.Kind, wire.HolderNode, wire.HolderMirror)
	case len(held.Name) > wire.MaxHolderName || strings.ContainsFunc(held.Name, unprintable):
		return errors.New("the holder's name is too long or not printable")
	case len(held.Trees) > wire.MaxHeld:
		return fmt.Errorf("the report has %d trees: want at most %d", len(held.Trees), wire.MaxHeld)
	}
	return nil
}

// count adds a report of a sender, unless that would exceed its limit.
func (s *Senders) count(sender string, now time.Time) bool {
	if sender == "" {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) >= maxSenders {
		clear(s.all) // all counts begin again
	}
	r := s.all[sender]
	if now.Sub(r.since) > reportWindow {
		r = reports{since: now}
	}
	if r.n >= maxReports {
		return false
	}
	r.n++
	s.all[sender] = r
	return true
}

// List returns the holders by the time of their last reports, the oldest report first.
func (s *Service) List(ctx context.Context) ([]wire.Holder, error) {
	holders, err := s.store.All(ctx)
	return s.describe(holders), err
}

// Of returns the holders of any of the trees, each once.
func (s *Service) Of(ctx context.Context, trees []chunk.ID) ([]wire.Holder, error) {
	var all []catalog.Holder
	seen := map[string]bool{}
	for _, tree := range trees {
		holders, err := s.store.Of(ctx, tree)
		if err != nil {
			return nil, err
		}
		for _, h := range holders {
			if !seen[h.ID] {
				seen[h.ID] = true
				all = append(all, h)
			}
		}
	}
	return s.describe(all), nil
}

func (s *Service) describe(holders []catalog.Holder) []wire.Holder {
	list := make([]wire.Holder, len(holders)) // never null
	for i, h := range holders {
		list[i] = wire.Holder{ID: wire.ShortHolder(h.ID), Kind: h.Kind, Name: h.Name, Address: h.Sender, Trees: h.Trees,
			State: wire.HolderPresent, Seen: h.Seen, Until: h.Seen.Add(s.Age())}
		if h.Age > wire.HeldLease {
			list[i].State = wire.HolderOverdue
		}
	}
	return list
}

// Forget removes the holder whose ID List shows as short. The error wraps catalog.ErrNotFound if
// there is no such holder, and report.ErrInvalid if there are several.
func (s *Service) Forget(ctx context.Context, short string) error {
	holders, err := s.store.All(ctx)
	if err != nil {
		return err
	}
	found := ""
	for _, h := range holders {
		if wire.ShortHolder(h.ID) != short {
			continue
		}
		if found != "" {
			return fmt.Errorf("%w: %s names several holders", report.ErrInvalid, short)
		}
		found = h.ID
	}
	if found == "" {
		return fmt.Errorf("holder %s: %w", short, catalog.ErrNotFound)
	}
	return s.store.ForgetHolder(ctx, found)
}

// Age is the time since a holder's last report after which Expire forgets it: its lease and the
// grace period.
func (s *Service) Age() time.Duration { return wire.HeldLease + s.grace }

// Run records in the catalog every hour that holders can report, until ctx ends. So Expire knows
// how long they could not.
func (s *Service) Run(ctx context.Context) error {
	for {
		if err := s.store.NoteServing(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("cannot record in the catalog that holders can report", "err", err)
		}
		if !sleep.For(ctx, noteEvery) {
			return nil
		}
	}
}

// Expire forgets the holders that have not reported for longer than Age.
func (s *Service) Expire(ctx context.Context) error {
	for {
		expired, err := s.store.ExpireHolders(ctx, s.Age(), expireBatch)
		if err != nil {
			return err
		}
		for _, h := range expired {
			s.log.Info("holder forgotten: it no longer reports", "kind", h.Kind, "name", h.Name, "trees", h.Trees,
				"seen", h.Seen)
		}
		if len(expired) < expireBatch {
			return nil
		}
	}
}

// Counts are figures for metrics.
type Counts struct {
	// Numbers of reports since the process started. The trees of reports Beyond a bound are held by
	// catalog.Others.
	Accepted, Beyond, Refused int64
	Holders                   map[string]int64 // by state
}

// Counts returns the figures.
func (s *Service) Counts(ctx context.Context) (Counts, error) {
	c := Counts{Accepted: s.accepted.Load(), Beyond: s.beyond.Load(), Refused: s.refused.Load(),
		Holders: map[string]int64{wire.HolderPresent: 0, wire.HolderOverdue: 0}}
	holders, err := s.List(ctx)
	for _, h := range holders {
		c.Holders[h.State]++
	}
	return c, err
}
