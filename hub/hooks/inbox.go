package hooks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/report"
	"lighter/sleep"
)

// JobKind is the kind of the jobs that look at what hints are about. The key is the hook's name.
const JobKind = "hook"

const (
	hooksAtOnce = 2
	lookBatch   = 100         // hints that are looked at together
	lookEvery   = time.Second // between two looks for hints
	maxHints    = 50_000      // of a hook, in each domain; then no more are accepted until the next look
	maxNames    = 1000        // names that one hint makes the hub look at

	maxWaiting = 1024 // requests that wait for a transaction
	maxBatch   = 256  // requests of one transaction
)

// Wish is an image that a hook's registry may have.
type Wish struct {
	Hook      string
	Source    string // docker://HOST/REPO:TAG, or with @DIGEST
	Platforms []string
	MayRemove bool // the hub need not keep the image if the registry does not have it
}

// Config has the parts of a hub that an Inbox uses.
type Config struct {
	Hooks   []Hook
	Catalog *catalog.Catalog
	Jobs    *jobs.Queue
	// Look makes the hub ask the registries of wishes for the truth. It returns when the catalog
	// has committed the request. The error wraps report.ErrInvalid if a wish is invalid; then it
	// has no effect.
	Look func(ctx context.Context, wishes []Wish) error
	Log  *slog.Logger
}

// Inbox has the hints of a domain. It is safe for concurrent use.
type Inbox struct {
	config   Config
	hints    *catalog.Hints
	requests chan *request
	full     sync.Map // names of hooks that had maxHints hints a second ago
}

// request is what a sender waits for.
type request struct {
	hints []catalog.Hint
	done  chan error // has room for one error
}

// NewInbox returns an inbox, and adds its kind of jobs to the queue.
func NewInbox(c Config) *Inbox {
	i := &Inbox{config: c, hints: c.Catalog.Hints, requests: make(chan *request, maxWaiting)}
	c.Jobs.Add(jobs.Kind{Name: JobKind, AtOnce: hooksAtOnce, Run: i.run})
	return i
}

// put stores hints of one hook. It returns when they are committed, or with report.ErrBusy if too
// many requests wait. The error is catalog.ErrFull if the hook has too many hints.
func (i *Inbox) put(ctx context.Context, hints []catalog.Hint) error {
	if _, full := i.full.Load(hints[0].Hook); full {
		return catalog.ErrFull
	}
	r := &request{hints, make(chan error, 1)}
	select {
	case i.requests <- r:
	default:
		return report.ErrBusy
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Run stores the hints of requests, and queues the jobs that look at what they are about, until ctx
// ends.
func (i *Inbox) Run(ctx context.Context) error {
	looking := make(chan struct{})
	go func() {
		defer close(looking)
		for sleep.For(ctx, lookEvery) {
			if err := i.queue(ctx); err != nil && ctx.Err() == nil {
				i.config.Log.Error("looks of hooks could not be queued", "err", err)
			}
		}
	}()
	defer func() { <-looking }()
	for {
		select {
		case r := <-i.requests:
			i.store(ctx, i.gather(r))
		case <-ctx.Done():
			return nil
		}
	}
}

// gather returns a request with those that wait behind it: one transaction stores them all, because
// each commit waits for the disk.
func (i *Inbox) gather(first *request) []*request {
	batch := []*request{first}
	for len(batch) < maxBatch {
		select {
		case r := <-i.requests:
			batch = append(batch, r)
		default:
			return batch
		}
	}
	return batch
}

// storeTimeout bounds a transaction that stores hints, so that senders get an answer.
const storeTimeout = 10 * time.Second

func (i *Inbox) store(ctx context.Context, batch []*request) {
	var hints []catalog.Hint
	for _, r := range batch {
		hints = append(hints, r.hints...)
	}
	within, cancel := context.WithTimeout(ctx, storeTimeout)
	err := i.hints.Add(within, hints)
	cancel()
	for _, r := range batch {
		r.done <- err
	}
}

// queue queues a job for each hook that has hints.
func (i *Inbox) queue(ctx context.Context) error {
	counts, err := i.hints.Count(ctx)
	if err != nil {
		return err
	}
	for _, h := range i.config.Hooks {
		if counts[h.Name] < maxHints {
			i.full.Delete(h.Name)
		} else {
			i.full.Store(h.Name, true)
		}
		if counts[h.Name] == 0 {
			continue
		}
		n, err := i.config.Catalog.Jobs.AddNew(ctx, catalog.Job{Kind: JobKind, Key: h.Name})
		if err != nil {
			return err
		}
		if n != 0 {
			i.config.Jobs.Changed(JobKind, h.Name)
		}
	}
	return nil
}

// run is the job that looks at what the hints of a hook are about.
func (i *Inbox) run(ctx context.Context, j *jobs.Running) error {
	for n := range i.config.Hooks {
		if i.config.Hooks[n].Name == j.Key {
			return i.lookAll(ctx, &i.config.Hooks[n])
		}
	}
	return nil // the configuration has changed
}

func (i *Inbox) lookAll(ctx context.Context, h *Hook) error {
	for {
		hints, err := i.hints.Of(ctx, h.Name, lookBatch)
		if err != nil || len(hints) == 0 {
			return err
		}
		for _, hint := range hints {
			wishes, err := i.wishes(ctx, h, hint)
			if err == nil && len(wishes) > 0 {
				err = i.config.Look(ctx, wishes)
			}
			if errors.Is(err, report.ErrInvalid) {
				i.config.Log.Warn("an event of a hook has no effect", "hook", h.Name, "repository", hint.Repository,
					"err", report.Logged(err))
				err = nil
			}
			if err != nil {
				return &jobs.RetryError{Err: err}
			}
		}
		// A hint that came again since it was read stays.
		if err := i.hints.Looked(ctx, hints); err != nil {
			return err
		}
	}
}

// wishes returns the images that a hint is about. A digest is that of images that the hub has: a
// manifest that was pushed without a tag is a part of another image.
func (i *Inbox) wishes(ctx context.Context, h *Hook, hint catalog.Hint) (wishes []Wish, err error) {
	name, err := h.named(hint.Repository)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	wish := func(source string) Wish {
		return Wish{Hook: h.Name, Source: "docker://" + source, Platforms: h.Platforms, MayRemove: h.MayDelete}
	}
	if isTag := hint.Reference != "" && !strings.Contains(hint.Reference, ":"); isTag {
		return []Wish{wish(name + ":" + hint.Reference)}, nil
	}
	if hint.Reference != "" {
		if _, err := digest.Parse(hint.Reference); err != nil {
			return nil, fmt.Errorf("%w: %w", report.ErrInvalid, err)
		}
	}
	names, err := i.hints.NamesOf(ctx, name, hint.Reference, maxNames)
	for _, n := range names {
		wishes = append(wishes, wish(n))
	}
	return wishes, err
}

// Count counts the hints by hook.
func (i *Inbox) Count(ctx context.Context) (map[string]int64, error) { return i.hints.Count(ctx) }
