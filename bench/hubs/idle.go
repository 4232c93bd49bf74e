package hubs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/bench"
	"lighter/sleep"
	"lighter/test/testkit/catalogtest"
	"lighter/wire"
)

// The images of a large hub: families share the layers of their base.
const (
	families       = 20
	familyVersions = 50
	familiesAtOnce = 4
	smallBytes     = 2000 // of each file
)

// The files of each layer of a base, and of the further layers of each version.
var (
	baseLayers    = []int{1500, 1000, 500}
	versionLayers = []int{150, 5}
)

const (
	startup   = 15 * time.Second // after which a hub is idle
	idleTime  = time.Minute
	idleShare = 0.05 // target: processor time : time
	nothing   = 10.0 // target: seconds of a collection that finds nothing
)

// idle measures a hub with many images that does nothing, and collections in it that find nothing.
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
	defer func() {
		for _, h := range hubs {
			if h.process != nil {
				err = errors.Join(err, h.stop())
			}
		}
	}()
	var group errgroup.Group
	for i, h := range hubs {
		h.root = filepath.Join(r.dir, fmt.Sprintf("large-%d", i))
		group.Go(func() error { return r.fill(ctx, h) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	// Everything that a hub does periodically is due a minute after its start.
	for _, h := range hubs {
		if err := r.restart(ctx, h); err != nil {
			return fmt.Errorf("%s: %w", h.name, err)
		}
	}
	if !sleep.For(ctx, startup) {
		return ctx.Err()
	}
	var used [2]float64
	for i, h := range hubs {
		if used[i], err = h.processor(); err != nil {
			return err
		}
	}
	if !sleep.For(ctx, idleTime) {
		return ctx.Err()
	}
	for i, h := range hubs {
		now, err := h.processor()
		if err != nil {
			return err
		}
		r.add(Result{Figure: "idle", What: "processor share of an idle hub, " + h.name,
			Value: (now - used[i]) / idleTime.Seconds(), Unit: "ratio"}, idleShare)
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
	*process
}

// fill starts a hub and pushes the images.
func (r *run) fill(ctx context.Context, h *large) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", h.name, err)
		}
	}()
	if h.process, err = r.startAt(ctx, r.Lighter, h.root, h.store, onRequest); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(familiesAtOnce)
	took, err := seconds(func() error {
		for n := range families {
			group.Go(func() error { return r.pushFamily(groupCtx, h, n) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
		return h.settled(ctx)
	})
	if err != nil {
		return err
	}
	images, err := h.Images(ctx, "")
	if err != nil {
		return err
	}
	for _, i := range images {
		if i.State != wire.StateReady {
			return fmt.Errorf("image %s is %s: %s", i.Name, i.State, i.Error)
		}
	}
	bench.Say("%d images were pushed in %s: %s", len(images), bench.Seconds(took), h.name)
	return nil
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
	for _, count := range baseLayers {
		if err := layer(count); err != nil {
			return err
		}
	}
	repository := fmt.Sprintf("family-%d", n)
	pushed := 0
	for v := range familyVersions {
		m.keep(len(baseLayers))
		for _, count := range versionLayers {
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
		pushed = len(baseLayers)
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
	source := h.store.catalog
	if source == "" {
		source = filepath.Join(h.root, "catalog.db")
	}
	db, err := catalogtest.OpenLarge(source)
	if err != nil {
		return err
	}
	if err := errors.Join(db.Execute(ctx, "DELETE FROM checks"), db.Close()); err != nil {
		return err
	}
	h.process, err = r.startAt(ctx, r.Lighter, h.root, h.store, "")
	return err
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
