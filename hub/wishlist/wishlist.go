package wishlist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/report"
	"lighter/hub/wants"
	"lighter/sleep"
	"lighter/wire"
)

// JobKind is the kind of the jobs that read a list. Their key is its name.
const JobKind = "wishlist"

// Config has the parts of a hub that a Service uses.
type Config struct {
	Lists      []List // of the hub's configuration, for this domain
	MaxPercent int64  // share of a list's images that may be dropped at a time without confirmation
	Catalog    *catalog.Catalog
	Wants      *wants.Service
	// Fetch returns a client for URLs, which logs in nowhere. plainHTTP: the list's URL has no TLS.
	Fetch func(plainHTTP bool) *http.Client
	// Login returns a client that is logged in to a registry, HOST[:PORT], for a scope: see
	// repositories.Login.
	Login     func(ctx context.Context, host, scope string, plainHTTP bool) (*http.Client, error)
	ImageJobs string // kind of the jobs that ingest images
	Log       *slog.Logger
}

// Service keeps the images of a domain's lists. It is safe for concurrent use.
type Service struct {
	// Rest is the pause after a registry, or the hub itself, has too much to do. It may be changed
	// before the jobs run.
	Rest time.Duration

	config Config
	jobs   *jobs.Queue
	plans  *semaphore.Weighted
}

// New returns a service, and adds its kind of jobs to the queue.
func New(c Config, q *jobs.Queue) *Service {
	s := &Service{Rest: time.Minute, config: c, jobs: q, plans: semaphore.NewWeighted(plansAtOnce)}
	q.Add(jobs.Kind{Name: JobKind, AtOnce: passesAtOnce, Run: s.run})
	return s
}

// Run queues the jobs of lists that are due, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	next := map[string]time.Time{}
	for sleep.For(ctx, s.jobs.DueInterval) {
		lists, err := s.lists(ctx)
		if err != nil && ctx.Err() == nil {
			s.config.Log.Error("the wishlists could not be read from the catalog", "err", err)
		}
		for _, l := range lists {
			if l.EveryMinutes == 0 || time.Now().Before(next[l.Name]) {
				continue
			}
			job := catalog.Job{Kind: JobKind, Key: l.Name, Priority: jobs.Low}
			queued, after, err := s.config.Catalog.Jobs.AddDue(ctx, job, time.Duration(l.EveryMinutes)*time.Minute)
			next[l.Name] = time.Now().Add(after)
			if err != nil && ctx.Err() == nil {
				s.config.Log.Error("a wishlist could not be queued", "list", l.Name, "err", err)
			}
			if queued {
				s.jobs.Changed(JobKind, l.Name)
			}
		}
	}
	return nil
}

// lists returns all lists, those of the configuration first.
func (s *Service) lists(ctx context.Context) ([]List, error) {
	lists := slices.Clone(s.config.Lists)
	stored, err := s.config.Catalog.Wishlists.All(ctx)
	for _, w := range stored {
		if w.Definition == "" || s.isConfigured(w.Name) {
			continue
		}
		l, err := parseDefinition(w)
		if err != nil {
			return lists, err
		}
		lists = append(lists, l)
	}
	return lists, err
}

func parseDefinition(w catalog.Wishlist) (l List, err error) {
	var stored wire.Wishlist
	if err := json.Unmarshal([]byte(w.Definition), &stored); err != nil {
		return l, fmt.Errorf("parse list %s: %w", w.Name, err)
	}
	return List(stored), nil
}

func (s *Service) isConfigured(name string) bool {
	return slices.ContainsFunc(s.config.Lists, func(l List) bool { return l.Name == name })
}

// find returns a list. The error wraps catalog.ErrNotFound if there is none.
func (s *Service) find(ctx context.Context, name string) (List, error) {
	for _, l := range s.config.Lists {
		if l.Name == name {
			return l, nil
		}
	}
	w, err := s.config.Catalog.Wishlists.Get(ctx, name)
	if err == nil && w.Definition == "" {
		err = catalog.ErrNotFound
	}
	if err != nil {
		return List{}, fmt.Errorf("list %s: %w", name, err)
	}
	return parseDefinition(w)
}

// States returns all lists, sorted by name: also those without a definition whose images are still
// wanted. The result of each has no problems, and the list no text.
func (s *Service) States(ctx context.Context) ([]wire.WishlistState, error) {
	counts, err := s.config.Catalog.Wants.Count(ctx)
	if err != nil {
		return nil, err
	}
	lists, err := s.lists(ctx)
	if err != nil {
		return nil, err
	}
	stored, err := s.config.Catalog.Wishlists.All(ctx)
	if err != nil {
		return nil, err
	}
	byName := map[string]*wire.WishlistState{}
	of := func(name string) *wire.WishlistState {
		if byName[name] == nil {
			byName[name] = &wire.WishlistState{Wishlist: wire.Wishlist{Name: name}}
		}
		return byName[name]
	}
	for _, l := range lists {
		of(l.Name).Wishlist, of(l.Name).Configured = wire.Wishlist(l), s.isConfigured(l.Name)
		of(l.Name).Text = ""
	}
	for by, n := range counts {
		if name, isList := strings.CutPrefix(by, catalog.ListPrefix); isList {
			of(name).Wanted = n
		}
	}
	for _, w := range stored {
		if of(w.Name).Last, err = parseResult(w); err != nil {
			return nil, err
		}
		if last := of(w.Name).Last; last != nil {
			last.Problems = nil
		}
	}
	states := make([]wire.WishlistState, 0, len(byName)) // never null
	for _, state := range byName {
		states = append(states, *state)
	}
	slices.SortFunc(states, func(a, b wire.WishlistState) int { return strings.Compare(a.Name, b.Name) })
	return states, nil
}

func parseResult(w catalog.Wishlist) (*wire.WishlistResult, error) {
	if len(w.Result) == 0 {
		return nil, nil
	}
	var r wire.WishlistResult
	if err := json.Unmarshal(w.Result, &r); err != nil {
		return nil, fmt.Errorf("parse the result of list %s: %w", w.Name, err)
	}
	return &r, nil
}

// State returns a list with its last problems and the images that it wants. The error wraps
// catalog.ErrNotFound if there is none.
func (s *Service) State(ctx context.Context, name string) (state wire.WishlistState, err error) {
	states, err := s.States(ctx)
	if err != nil {
		return state, err
	}
	i := slices.IndexFunc(states, func(state wire.WishlistState) bool { return state.Name == name })
	if i < 0 {
		return state, fmt.Errorf("list %s: %w", name, catalog.ErrNotFound)
	}
	state = states[i]
	stored, err := s.config.Catalog.Wishlists.Get(ctx, name)
	if err == nil {
		state.Last, err = parseResult(stored)
	}
	if err != nil && !errors.Is(err, catalog.ErrNotFound) {
		return state, err
	}
	if l, err := s.find(ctx, name); err == nil {
		state.Text = l.Text
	}
	all, err := s.config.Catalog.Wants.By(ctx, wants.List(name))
	for _, w := range all {
		if !w.Dropped {
			state.Wants = append(state.Wants, wire.WishlistImage{Name: w.Name, Source: w.Source, Digest: w.Seen,
				Error: w.Error, Since: w.Since.UTC()})
		}
	}
	return state, err
}

// Add adds a list, or changes one that users have added, and queues a job that reads it. It returns
// the job. The error wraps report.ErrInvalid if the list is invalid or in the configuration.
func (s *Service) Add(ctx context.Context, w wire.Wishlist) (catalog.Job, error) {
	if err := s.check(w); err != nil {
		return catalog.Job{}, err
	}
	b, err := json.Marshal(w)
	if err != nil {
		return catalog.Job{}, err
	}
	if err := s.config.Catalog.Wishlists.Define(ctx, w.Name, string(b)); err != nil {
		return catalog.Job{}, err
	}
	return s.Sync(ctx, w.Name, false)
}

func (s *Service) check(w wire.Wishlist) error {
	err := List(w).Check()
	switch {
	case err != nil:
	case w.File != "":
		err = errors.New("file: only the hub's configuration can name files of the hub's machine")
	case s.isConfigured(w.Name):
		err = errors.New("the hub's configuration has a list with this name: change it there")
	case w.Text != "":
		_, err = Parse([]byte(w.Text))
	}
	if err != nil {
		return fmt.Errorf("%w: list %s: %w", report.ErrInvalid, short(w.Name), err)
	}
	return nil
}

// work is the payload of a job.
type work struct {
	// Confirmed says that the list may lose any share of its images.
	Confirmed bool `json:"confirmed,omitempty"`
}

// Sync queues a job that reads a list as soon as possible, and returns the job. If confirmed is
// true, the list may lose any share of its images. The error wraps catalog.ErrNotFound if there is
// no such list.
func (s *Service) Sync(ctx context.Context, name string, confirmed bool) (catalog.Job, error) {
	if _, err := s.find(ctx, name); err != nil {
		return catalog.Job{}, err
	}
	j := catalog.Job{Kind: JobKind, Key: name, Priority: 1, ByUser: true}
	n, err := s.config.Catalog.Jobs.AddMerged(ctx, j, func(open catalog.Job) ([]byte, error) {
		var before work
		if open.Request != wire.JobCancel && len(open.Payload) > 0 {
			if err := json.Unmarshal(open.Payload, &before); err != nil {
				return nil, err
			}
		}
		return json.Marshal(work{confirmed || before.Confirmed})
	})
	if err != nil {
		return catalog.Job{}, err
	}
	s.jobs.Changed(JobKind, name)
	return s.config.Catalog.Jobs.Get(ctx, n)
}

// Await waits until the job of a list has ended, calls send for each step, and returns the result.
// Errors are those of jobs.Done.
func (s *Service) Await(
	ctx context.Context, job int64, send func(wire.Progress) error,
) (r *wire.WishlistResult, err error) {
	defer func() { err = report.Error(err) }()
	j, err := s.config.Catalog.Jobs.Get(ctx, job)
	if err == nil && j.Kind != JobKind {
		err = fmt.Errorf("job %d: %w", job, catalog.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	if _, err := s.jobs.AwaitEnd(ctx, JobKind, j.Key, job, report.NewSender(send)); err != nil {
		return nil, err
	}
	w, err := s.config.Catalog.Wishlists.Get(ctx, j.Key)
	if err != nil {
		return nil, err
	}
	return parseResult(w)
}

// Remove removes a list that users have added, or that the configuration no longer has. Its images
// go unless somebody else wants them. The error wraps report.ErrInvalid if the configuration has
// the list, and catalog.ErrNotFound if there is no such list.
func (s *Service) Remove(ctx context.Context, name string) error {
	if s.isConfigured(name) {
		return fmt.Errorf("%w: list %s is in the hub's configuration: take it off there", report.ErrInvalid, name)
	}
	all, err := s.config.Catalog.Wants.By(ctx, wants.List(name))
	if err != nil {
		return err
	}
	isWanted := slices.ContainsFunc(all, func(w catalog.Wanted) bool { return !w.Dropped })
	if _, err := s.config.Catalog.Wishlists.Get(ctx, name); err != nil && !isWanted {
		return fmt.Errorf("list %s: %w", name, err)
	}
	if err := s.config.Catalog.Wishlists.Remove(ctx, name); err != nil {
		return err
	}
	if err := s.stop(ctx, name); err != nil { // otherwise the job could want more images
		return err
	}
	if all, err = s.config.Catalog.Wants.By(ctx, wants.List(name)); err != nil {
		return err
	}
	var names []string
	for _, w := range all {
		names = append(names, w.Name)
	}
	return s.config.Wants.Drop(ctx, wants.List(name), names...)
}

// stop ends the open job of a list, and waits for that.
func (s *Service) stop(ctx context.Context, name string) error {
	j, err := s.config.Catalog.Jobs.Open(ctx, JobKind, name)
	if err == nil {
		_, err = s.jobs.Cancel(ctx, j.N)
	}
	if errors.Is(err, catalog.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	silent := report.NewSender(func(wire.Progress) error { return nil })
	return s.jobs.Await(ctx, JobKind, name, silent, func(ctx context.Context) (bool, error) {
		_, err := s.config.Catalog.Jobs.Open(ctx, JobKind, name)
		if errors.Is(err, catalog.ErrNotFound) {
			return true, nil
		}
		return false, err
	})
}
