package wishlist

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/pull"
	"lighter/hub/report"
	"lighter/hub/wants"
	"lighter/wire"
)

// run reads a list and looks at its images, as a job.
func (s *Service) run(ctx context.Context, j *jobs.Running) error {
	l, err := s.find(ctx, j.Key)
	if err != nil {
		return err
	}
	var w work
	if len(j.Payload) > 0 {
		if err := json.Unmarshal(j.Payload, &w); err != nil {
			return fmt.Errorf("parse the job: %w", err)
		}
	}
	p, err := s.newPass(ctx, l, &j.Progress)
	if err != nil {
		return err
	}
	if err := p.do(ctx, w.Confirmed); err != nil {
		return err
	}
	return p.end(ctx, j)
}

// pass is one reading of a list.
type pass struct {
	*Service
	list     List
	progress *report.Progress
	before   pages // contents of the list's URLs
	after    pages

	have []catalog.Wanted // by the list, before the pass

	mu      sync.Mutex // guards the following
	result  wire.WishlistResult
	lines   []lineOf
	isFull  bool              // the list names more than maxImages
	targets map[string]target // by the name of the image
	sources map[place]func() (*pull.Source, error)
	emptied []listing // repositories whose tags seem to be gone
	// failures counts the requests to a registry that have failed in a row.
	failures map[string]int
}

// lineOf is a line of a file, a URL or a setting, or a repository of a registry.
type lineOf struct {
	Line
	of    string
	found bool // the registry has listed the repository
}

// target is an image that a line names.
type target struct {
	catalog.Wanted
	line lineOf
}

// place is a repository of another registry.
type place struct {
	repository string
	plainHTTP  bool
}

func (s *Service) newPass(ctx context.Context, l List, progress *report.Progress) (*pass, error) {
	cache, err := s.config.Catalog.Wishlists.Cache(ctx, l.Name)
	if err != nil {
		return nil, err
	}
	have, err := s.config.Catalog.Wants.By(ctx, wants.List(l.Name))
	return &pass{Service: s, list: l, progress: progress, before: parsePages(cache), after: pages{}, have: have,
		result: wire.WishlistResult{At: now(), Complete: true}, targets: map[string]target{},
		sources: map[place]func() (*pull.Source, error){}, failures: map[string]int{}}, err
}

// do reads the list, wants its images, drops the others, and looks at the sources.
func (p *pass) do(ctx context.Context, confirmed bool) error {
	if err := p.expand(ctx); err != nil {
		return err
	}
	if err := p.update(ctx, confirmed); err != nil {
		return err
	}
	return p.look(ctx)
}

// expand finds all images that the list names.
func (p *pass) expand(ctx context.Context) error {
	p.read(ctx)
	p.result.Lines = int64(len(p.lines) + len(p.result.Problems))
	p.findRepositories(ctx)
	p.expandTags(ctx)
	for _, l := range p.lines {
		if !l.isPattern() {
			p.add(l, l.Tag)
		}
	}
	p.result.Images = int64(len(p.targets))
	return context.Cause(ctx)
}

// fail notes a problem with a line.
func (p *pass) fail(l lineOf, err error) {
	p.problem(wire.WishlistProblem{Of: l.of, Line: l.N, Text: short(l.Text), Why: report.Reason(err)})
}

// lack notes that a file, a URL or a list of tags could not be read. Then nothing is dropped.
func (p *pass) lack(l lineOf, err error) {
	p.fail(l, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.result.Complete = false
}

func (p *pass) problem(problem wire.WishlistProblem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.result.Failed++; len(p.result.Problems) < maxProblems {
		p.result.Problems = append(p.result.Problems, problem)
	}
}

// source opens a repository, once in a pass.
func (p *pass) source(ctx context.Context, at place) (*pull.Source, error) {
	p.mu.Lock()
	open := p.sources[at]
	if open == nil {
		open = sync.OnceValues(func() (*pull.Source, error) {
			return p.config.Wants.Open(ctx, catalog.Want{Source: "docker://" + at.repository, PlainHTTP: at.plainHTTP})
		})
		p.sources[at] = open
	}
	p.mu.Unlock()
	from, err := open()
	if isLater(err) {
		p.mu.Lock()
		delete(p.sources, at)
		p.mu.Unlock()
	}
	return from, err
}

// add adds the image of a line, or that of one tag that the line matches.
func (p *pass) add(l lineOf, tag string) {
	w, err := p.config.Wants.Want(wants.Wish{Source: l.Source(tag), By: wants.List(p.list.Name), PlainHTTP: l.PlainHTTP,
		Platforms: p.list.Platforms, ByRules: p.list.ByRules})
	if err != nil {
		p.fail(l, err)
		return
	}
	p.mu.Lock()
	_, known := p.targets[w.Name]
	full, before := !known && len(p.targets) >= maxImages, p.isFull
	if !known && !full {
		p.targets[w.Name] = target{catalog.Wanted{Want: w}, l}
	}
	p.isFull = p.isFull || full
	p.mu.Unlock()
	if full && !before {
		p.lack(l, fmt.Errorf("%s is not done, and neither are further images: the list names more than %d", w.Name,
			maxImages))
	}
}

// full reports whether the list names more images than are done.
func (p *pass) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.isFull
}

// compare finds the targets that the list wants already, and returns the names of images that it
// no longer names.
func (p *pass) compare() (gone []string, live int64) {
	for _, w := range p.have {
		if !w.Dropped {
			live++
		}
		t, wanted := p.targets[w.Name]
		switch {
		case !wanted && !w.Dropped:
			gone = append(gone, w.Name)
		case wanted && isSame(t.Want, w.Want):
			t.Wanted = w
			p.targets[w.Name] = t
		}
	}
	return gone, live
}

// update makes the catalog want the images of the list, and drops those that it no longer names.
func (p *pass) update(ctx context.Context, confirmed bool) error {
	gone, live := p.compare()
	var changed []catalog.Want
	for _, t := range p.targets {
		if t.Since.IsZero() {
			changed = append(changed, t.Want)
		}
	}
	if err := p.config.Catalog.Wants.Add(ctx, changed, nil); err != nil {
		return err
	}
	p.judge(int64(len(gone)), live, confirmed)
	if p.result.Waiting > 0 {
		p.config.Log.Warn("a wishlist has lost too many images: they stay until an administrator confirms it "+
			"(lighter wishlist sync --confirm)", "list", p.list.Name, "images", len(gone))
	}
	if p.result.Dropped == 0 {
		return nil
	}
	return p.config.Wants.Drop(ctx, wants.List(p.list.Name), gone...)
}

// judge decides whether images that the list no longer names are dropped. live is the number of
// images that it has named until now.
func (p *pass) judge(gone, live int64, confirmed bool) {
	switch {
	case !p.result.Complete:
	case !confirmed && gone*100 > p.config.MaxPercent*live:
		p.result.Waiting = gone
	default:
		p.result.Dropped = gone
	}
}

// isSame reports whether a want of the catalog is what the list wants.
func isSame(want, have catalog.Want) bool {
	return !have.Dropped && want.Source == have.Source && want.PlainHTTP == have.PlainHTTP &&
		want.ByRules == have.ByRules && slices.Equal(want.Platforms, have.Platforms)
}

// look looks at the source of each image.
func (p *pass) look(ctx context.Context) error {
	step := p.progress.Step("look", p.list.Name, int64(len(p.targets)))
	left := rounds(ctx, p.Rest, slices.Collect(maps.Values(p.targets)), func(t target) error {
		err := p.check(ctx, t)
		if isLater(err) {
			return err
		}
		step.Add(1)
		if err != nil {
			p.fail(t.line, fmt.Errorf("%s: %w", t.Name, err))
		}
		return nil
	})
	for _, t := range left {
		p.fail(t.line, fmt.Errorf("%s was not looked at: its registry gets too many requests", t.Name))
	}
	return context.Cause(ctx)
}

// maxFailures bounds the requests to a registry that fail in a row. Each may take a minute.
const maxFailures = 32

// guard calls do, which asks the registry of a place, unless the registry does not work.
func (p *pass) guard(at place, do func() error) error {
	host, _, _ := strings.Cut(at.repository, "/")
	p.mu.Lock()
	isBroken := p.failures[host] >= maxFailures
	p.mu.Unlock()
	if isBroken {
		return fmt.Errorf("%d requests to %s have failed in a row: it is not asked any more this time", maxFailures,
			host)
	}
	err := do()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures[host]++
	if err == nil || errors.Is(err, pull.ErrGone) || !errors.Is(err, pull.ErrSource) || isLater(err) {
		p.failures[host] = 0
	}
	return err
}

// check looks at the source of an image.
func (p *pass) check(ctx context.Context, t target) error {
	at := place{t.line.Repository, t.line.PlainHTTP}
	return p.guard(at, func() error { return p.checkNow(ctx, at, t) })
}

func (p *pass) checkNow(ctx context.Context, at place, t target) error {
	from, err := p.source(ctx, at)
	if err != nil {
		return err
	}
	ref, _, err := pull.ParseSource(t.Source)
	if err != nil {
		return err
	}
	priority := int64(jobs.Lowest)
	if p.list.First {
		priority = jobs.Low
	}
	queued, err := p.config.Wants.Check(ctx, t.Wanted, from.At(ref), priority)
	p.mu.Lock()
	defer p.mu.Unlock()
	if queued && err == nil {
		p.result.Fetched++
	} else if err == nil {
		p.result.Unchanged++
	}
	return err
}

// sortProblems brings the problems into the order of the lines.
func (p *pass) sortProblems() {
	slices.SortFunc(p.result.Problems, func(a, b wire.WishlistProblem) int {
		return cmp.Or(strings.Compare(a.Of, b.Of), cmp.Compare(a.Line, b.Line), strings.Compare(a.Text, b.Text))
	})
}

// end records the result.
func (p *pass) end(ctx context.Context, j *jobs.Running) error {
	p.sortProblems()
	p.estimate(ctx)
	full, err := json.Marshal(p.result)
	if err != nil {
		return err
	}
	var cache []byte
	if len(p.list.URLs) > 0 {
		if cache, err = json.Marshal(p.after); err != nil {
			return err
		}
	}
	brief := p.result
	brief.Problems = nil
	if j.Result, err = json.Marshal(brief); err != nil {
		return err
	}
	if p.result.Failed > 0 {
		p.config.Log.Warn("a wishlist has lines that could not be done (lighter wishlist show)", "list", p.list.Name,
			"problems", p.result.Failed)
	}
	return p.config.Catalog.Wishlists.Done(ctx, p.list.Name, p.isConfigured(p.list.Name), full, cache)
}
