package hubs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/bench"
	"lighter/test/testkit/catalogtest"
	"lighter/wire"
	"lighter/wire/client"
)

// family is some versions of an image, which share the layers of their base.
type family struct {
	versions int
	base     []int // the number of files in each layer of the base
	further  []int // the number of files in each further layer of a version
}

// The images of a large hub.
const (
	families       = 20
	familiesAtOnce = 4    // families that are pushed at the same time
	smallBytes     = 2000 // bytes of each file
)

var largeFamily = family{versions: 50, base: []int{1500, 1000, 500}, further: []int{150, 5}}

const (
	startup   = 15 * time.Second // from a hub's start until the measurement begins
	idleTime  = time.Minute      // length of the measurement
	idleShare = 0.05             // target: processor time of an idle hub : elapsed time
	nothing   = 10.0             // target: seconds of a collection that finds nothing
)

// idle measures the processor time of an idle hub with many images, and the time of collections
// that find nothing.
func (r *run) idle(ctx context.Context) (err error) {
	shared, end, err := startShared()
	if err != nil {
		return err
	}
	defer end()
	other, err := shared()
	if err != nil {
		return err
	}
	hubs := []*large{{name: "SQLite and a directory"}, {name: "PostgreSQL and S3", store: other}}
	defer func() { err = errors.Join(err, stopAll(hubs)) }()
	var group errgroup.Group
	for i, h := range hubs {
		h.root = filepath.Join(r.dir, fmt.Sprintf("large-%d", i))
		h.families, h.family = families, largeFamily
		group.Go(func() error { return r.fill(ctx, h) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	shares, err := r.idleShares(ctx, hubs)
	if err != nil {
		return err
	}
	for i, h := range hubs {
		r.add(Result{Figure: "idle", What: "processor share of an idle hub, " + h.name, Value: shares[i],
			Unit: "ratio"}, idleShare)
	}
	for _, h := range hubs {
		var all []float64
		for range r.Rounds {
			var freed *wire.Collection
			took, err := seconds(func() (err error) { freed, err = h.collect(ctx); return err })
			if err == nil && freed.Trees+freed.Layers+freed.Packs+freed.Rewritten > 0 {
				err = fmt.Errorf("%s: the collection has found something: %+v", h.name, *freed)
			}
			if err != nil {
				return err
			}
			all = append(all, took)
		}
		r.median("idle", "collection of nothing, "+h.name, all, nothing)
	}
	return nil
}

// large is a hub with many images.
type large struct {
	name, root string
	store      store
	families   int
	family     family
	domains    int     // domains besides the default one, with one family each; 0: the default one has all
	started    float64 // the seconds that the last start took
	*process
}

// settings are the lines of the configuration about the domains.
func (h *large) settings() string {
	var text strings.Builder
	for n := range h.domains {
		fmt.Fprintf(&text, "[[domain]]\nname = %q\nrepositories = [%q]\n", domainName(n), familyName(n))
	}
	return text.String()
}

func familyName(n int) string { return fmt.Sprintf("family-%d", n) }
func domainName(n int) string { return fmt.Sprintf("d%d", n) }

// domainNames returns the names of all domains.
func (h *large) domainNames() []string {
	names := []string{wire.DefaultDomain}
	for n := range h.domains {
		names = append(names, domainName(n))
	}
	return names
}

// in returns the hub's process with a client of a domain.
func (h *large) in(domain string) (*process, error) {
	of := *h.process
	var err error
	of.Client, err = client.New(client.Options{URL: "http://" + h.address, Domain: domain})
	return &of, err
}

// fill starts a hub, pushes its images, and waits until all are ready.
func (r *run) fill(ctx context.Context, h *large) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", h.name, err)
		}
	}()
	if h.process, err = r.startAt(ctx, r.Lighter, h.root, h.store, onRequest+h.settings()); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(familiesAtOnce)
	images := 0
	took, err := seconds(func() error {
		for n := range h.families {
			group.Go(func() error { return r.pushFamily(groupCtx, h, n) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
		for _, domain := range h.domainNames() {
			n, err := h.filled(ctx, domain)
			if images += n; err != nil {
				return fmt.Errorf("domain %s: %w", domain, err)
			}
		}
		return nil
	})
	if err == nil && images != h.families*h.family.versions {
		err = fmt.Errorf("%d images, want %d", images, h.families*h.family.versions)
	}
	if err != nil {
		return err
	}
	bench.Say("%d images were pushed in %s: %s", images, bench.Seconds(took), h.name)
	return nil
}

// filled waits until a domain has no open job, and returns the number of its images, all of which
// are ready.
func (h *large) filled(ctx context.Context, domain string) (int, error) {
	p, err := h.in(domain)
	if err != nil {
		return 0, err
	}
	if err := p.settled(ctx); err != nil {
		return 0, err
	}
	images, err := p.Images(ctx, "")
	if err != nil {
		return 0, err
	}
	for _, i := range images {
		if i.State != wire.StateReady {
			return 0, fmt.Errorf("image %s is %s: %s", i.Name, i.State, i.Error)
		}
	}
	return len(images), nil
}

// pushFamily pushes the images of a family.
func (r *run) pushFamily(ctx context.Context, h *large, n int) error {
	m, err := makeLayout(filepath.Join(h.root+"-images", fmt.Sprint(n)))
	if err != nil {
		return err
	}
	seed := uint64(n) << 20
	layer := func(count int) error {
		seed += uint64(count)
		return m.add(files(smallBytes, seeds(seed-uint64(count), seed-1)...))
	}
	for _, count := range h.family.base {
		if err := layer(count); err != nil {
			return err
		}
	}
	repository := familyName(n)
	pushed := 0
	for v := range h.family.versions {
		m.keep(len(h.family.base))
		for _, count := range h.family.further {
			if err := layer(count); err != nil {
				return err
			}
		}
		if err := m.write(); err != nil {
			return err
		}
		if err := h.pushBlobs(ctx, m.dir, repository, pushed); err != nil {
			return err
		}
		if err := h.putManifest(ctx, m.dir, repository, fmt.Sprint(v)); err != nil {
			return err
		}
		pushed = len(h.family.base)
	}
	return nil
}

// restart starts a hub again, with collections and checks due.
func (r *run) restart(ctx context.Context, h *large) error {
	p := h.process
	h.process = nil
	if err := p.end(); err != nil {
		return err
	}
	for _, domain := range h.domainNames() {
		if err := h.forgetChecks(ctx, domain); err != nil {
			return fmt.Errorf("domain %s: %w", domain, err)
		}
	}
	var err error
	h.started, err = seconds(func() (err error) {
		h.process, err = r.startAt(ctx, r.Lighter, h.root, h.store, h.settings())
		return err
	})
	return err
}

// forgetChecks makes collections and checks of a domain due.
func (h *large) forgetChecks(ctx context.Context, domain string) error {
	source, schema, dir := h.store.catalog, "", h.root
	if domain != wire.DefaultDomain {
		schema, dir = "domain_"+domain+".", filepath.Join(h.root, "domains", domain)
	}
	if source == "" {
		source, schema = filepath.Join(dir, "catalog.db"), ""
	}
	db, err := catalogtest.OpenLarge(source)
	if err != nil {
		return err
	}
	return errors.Join(db.Execute(ctx, "DELETE FROM "+schema+"checks"), db.Close())
}

// collect runs a collection, and returns what it has done.
func (p *process) collect(ctx context.Context) (*wire.Collection, error) {
	begun := time.Now()
	job, err := p.Collect(ctx)
	if err != nil {
		return nil, err
	}
	last, err := p.AwaitCollection(ctx, job.N, func(wire.Progress) {})
	if err == nil && (last.Collection == nil || last.Collection.At.Before(begun)) {
		err = errors.New("the collection has left no result")
	}
	return last.Collection, err
}
