// Package events tells other systems what has become of images: that they are ready, have failed or
// were removed.
//
// The catalog adds an event in the transaction that changes the image. So no event is lost, and
// none is invented. A job delivers the events to each target of the configuration that wants them,
// as CloudEvents 1.0, signed if the target has a secret. A target gets each event at least once, in
// no promised order; the event's ID is the same each time. Attempts are made for a day, with
// growing pauses, and no sooner than the target asks for (Retry-After). Then the delivery is dead:
// it is kept for users, who may have it made again. What is kept is bounded in number and age.
//
// The package connects only to public addresses, unless a target is private. It follows no
// redirect, and shows no URL of a target, which may hold a secret.
//
// Watch passes changes to users as they happen.
package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/report"
	"lighter/sleep"
	"lighter/wire"
)

// JobKind is the kind of the jobs that deliver events. The key is the target's name.
const JobKind = "event"

const (
	targetsAtOnce = 4   // targets to which a process delivers at a time
	atOnce        = 4   // events that are sent to a target at a time
	batch         = 100 // events that are distributed in one transaction, and sent before the next look

	lookEvery  = time.Second // between two looks for new events and due deliveries
	pruneEvery = time.Minute
	lasting    = 24 * time.Hour // from an event until no more attempts are made
)

// bounds bound what is kept of events.
var bounds = catalog.EventBounds{Events: 10_000, Age: 7 * 24 * time.Hour, Waiting: 100_000,
	Lasting: lasting + time.Hour, Dead: 1000, Kept: 30 * 24 * time.Hour}

// pauses are the pauses after failed attempts.
var pauses = sleep.Backoff{First: 2 * time.Second, Most: time.Hour, Jitter: 0.3}

// Config has the parts of a hub that a Service uses.
type Config struct {
	Domain  string
	Targets []Target
	Catalog *catalog.Catalog
	Jobs    *jobs.Queue
	Log     *slog.Logger
}

// Service delivers the events of a domain. It is safe for concurrent use.
type Service struct {
	config  Config
	events  *catalog.Events
	senders []*sender
	source  string // of the CloudEvents
	watches chan struct{}

	delivered, failed map[string]*atomic.Int64 // attempts, by target
}

// New returns a service, and adds its kind of jobs to the queue. It reads the files of the targets.
func New(ctx context.Context, c Config) (*Service, error) {
	hub, err := c.Catalog.HubID(ctx)
	if err != nil {
		return nil, err
	}
	s := &Service{config: c, events: c.Catalog.Events, source: "lighter://" + hub + "/" + c.Domain,
		watches: make(chan struct{}, maxWatches), delivered: map[string]*atomic.Int64{},
		failed: map[string]*atomic.Int64{}}
	for _, t := range c.Targets {
		sender, err := newSender(t, c.Log)
		if err != nil {
			return nil, err
		}
		s.senders = append(s.senders, sender)
		s.delivered[t.Name], s.failed[t.Name] = new(atomic.Int64), new(atomic.Int64)
	}
	c.Jobs.Add(jobs.Kind{Name: JobKind, AtOnce: targetsAtOnce, Run: s.run})
	return s, nil
}

// Run distributes events and queues the jobs that deliver them, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	pruned := time.Now()
	for sleep.For(ctx, lookEvery) {
		err := s.look(ctx)
		if err == nil && time.Since(pruned) >= pruneEvery {
			pruned = time.Now()
			err = s.prune(ctx)
		}
		if err != nil && ctx.Err() == nil {
			s.config.Log.Error("events could not be distributed", "err", err)
		}
	}
	return nil
}

// look distributes new events, and queues a job for each target with due deliveries.
func (s *Service) look(ctx context.Context) error {
	for {
		has, err := s.events.HasNew(ctx)
		if err != nil {
			return err
		}
		if !has {
			break
		}
		n, err := s.events.Distribute(ctx, batch, s.targetsOf)
		if err != nil {
			return err
		}
		if n == 0 { // another process distributes them
			break
		}
	}
	for _, to := range s.senders {
		due, err := s.events.IsDue(ctx, to.Name)
		if err != nil {
			return err
		}
		if !due {
			continue
		}
		n, err := s.config.Catalog.Jobs.AddNew(ctx, catalog.Job{Kind: JobKind, Key: to.Name})
		if err != nil {
			return err
		}
		if n != 0 {
			s.config.Jobs.Changed(JobKind, to.Name)
		}
	}
	return nil
}

// targetsOf returns the names of the targets that are to get an event.
func (s *Service) targetsOf(e catalog.Event) (names []string) {
	for _, to := range s.senders {
		if to.wants(e) {
			names = append(names, to.Name)
		}
	}
	return names
}

func (s *Service) prune(ctx context.Context) error {
	died, removed, err := s.events.Prune(ctx, bounds)
	if died > 0 {
		s.config.Log.Warn("events were not delivered in time (lighter events --dead)", "events", died)
	}
	if removed > 0 {
		s.config.Log.Warn("dead deliveries of events were removed: there were too many, or they were too old", "events",
			removed)
	}
	return err
}

// run is the job that delivers all due events to a target.
func (s *Service) run(ctx context.Context, j *jobs.Running) error {
	for _, to := range s.senders {
		if to.Name == j.Key {
			return s.deliverAll(ctx, to)
		}
	}
	return nil // another process knows the target, or the configuration has changed: Prune ends it
}

func (s *Service) deliverAll(ctx context.Context, to *sender) error {
	for {
		due, err := s.events.Due(ctx, to.Name, batch)
		if err != nil || len(due) == 0 {
			return err
		}
		var group errgroup.Group
		group.SetLimit(atOnce)
		var resting atomic.Bool
		for _, d := range due {
			group.Go(func() error {
				if resting.Load() || ctx.Err() != nil {
					return context.Cause(ctx)
				}
				rests, err := s.deliver(ctx, to, d)
				if rests {
					resting.Store(true)
				}
				return err
			})
		}
		if err := group.Wait(); err != nil || resting.Load() {
			return err
		}
	}
}

// deliver makes one attempt, and records its result. It reports whether the target rests now. The
// error is one of the catalog, or of the end of ctx.
func (s *Service) deliver(ctx context.Context, to *sender, d catalog.Delivery) (rests bool, err error) {
	err = to.send(ctx, s.source, s.describe(d.Event))
	if err == nil {
		s.delivered[to.Name].Add(1)
		return false, s.events.Delivered(ctx, d)
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	s.failed[to.Name].Add(1)
	var failed *attemptError
	errors.As(err, &failed)
	pause := max(pauses.After(int(d.Attempts)+1), failed.after)
	reason := report.Reason(err)
	dead := d.Age >= lasting
	s.config.Log.Warn("an event could not be delivered", "target", to.Name, "image", d.Name, "attempt", d.Attempts+1,
		"err", report.Logged(err))
	if err := s.events.Failed(ctx, d, reason, pause, dead); err != nil || !failed.target {
		return false, err
	}
	return true, s.events.Rest(ctx, to.Name, reason, pause)
}

// describe returns an event as users and targets see it.
func (s *Service) describe(e catalog.Event) wire.Event {
	return wire.Event{ID: e.ID, Kind: e.Kind, Domain: s.config.Domain, Name: e.Name, Digest: e.Digest, Root: e.Root,
		Platform: e.Platform, Error: e.Error, At: e.At.UTC()}
}

// maxListed bounds the events, and the deliveries, in an answer.
const maxListed = 1000

// List returns the latest events and the deliveries that are to be made; with dead, the dead
// deliveries.
func (s *Service) List(ctx context.Context, dead bool) (wire.EventLog, error) {
	log := wire.EventLog{Events: []wire.Event{}, Deliveries: []wire.Delivery{}}
	deliveries, err := s.events.Deliveries(ctx, dead, maxListed)
	if err != nil {
		return log, err
	}
	for _, d := range deliveries {
		w := wire.Delivery{Event: s.describe(d.Event), Target: d.Target, Attempts: d.Attempts, Failure: d.Failure}
		if d.Dead.IsZero() {
			w.Due = d.Due.UTC()
		} else {
			w.Dead = d.Dead.UTC()
		}
		log.Deliveries = append(log.Deliveries, w)
	}
	if dead {
		return log, nil
	}
	events, err := s.events.Latest(ctx, maxListed)
	for _, e := range events {
		log.Events = append(log.Events, s.describe(e))
	}
	return log, err
}

// Retry makes dead deliveries again: those of the event with an ID, or all if it is empty. The
// error wraps catalog.ErrNotFound if the event has none.
func (s *Service) Retry(ctx context.Context, id string) (wire.Retried, error) {
	n, err := s.events.Revive(ctx, id)
	if err != nil {
		return wire.Retried{}, fmt.Errorf("retry events: %w", err)
	}
	return wire.Retried{Deliveries: n}, nil
}

// Counts are the numbers of one target.
type Counts struct {
	Delivered, Failed int64 // attempts of this process
	Waiting, Dead     int64 // deliveries
}

// Counts returns the numbers of each target.
func (s *Service) Counts(ctx context.Context) (map[string]Counts, error) {
	waiting, dead, err := s.events.Count(ctx)
	counts := map[string]Counts{}
	for _, to := range s.senders {
		counts[to.Name] = Counts{Delivered: s.delivered[to.Name].Load(), Failed: s.failed[to.Name].Load(),
			Waiting: waiting[to.Name], Dead: dead[to.Name]}
	}
	return counts, err
}
