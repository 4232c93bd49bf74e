package startup

import (
	"context"
	"errors"
	"slices"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/plan"
	"lighter/hub/catalog"
	"lighter/wire"
)

// Describe returns the workloads and startup packs of a ready image. Errors are report.ErrBusy, and
// errors of the catalog and the bucket.
func (s *Service) Describe(ctx context.Context, image catalog.Image) (wire.Starts, error) {
	d := wire.Starts{Name: image.Name, Digest: image.Digest, Platform: image.Platform, Tree: image.Tree.String(),
		Workloads: []wire.Workload{}, Packs: []wire.StartupPack{}}
	if err := enter(ctx, s.readSlots, 1); err != nil {
		return d, err
	}
	defer s.readSlots.Release(1)
	kept, _, err := s.recordings.load(ctx, image.Tree)
	if err != nil {
		return d, err
	}
	locations, err := s.trees.locations(ctx, image.Tree)
	if isMissing(err) { // the locations were replaced or removed meanwhile
		locations, err = nil, nil
	}
	if err != nil {
		return d, err
	}
	use, err := s.config.Catalog.Starts.TreeUse(ctx, image.Tree)
	if err != nil && !errors.Is(err, catalog.ErrNotFound) {
		return d, err
	}
	d.Lost = use.Lost.UTC()
	for _, kind := range []string{catalog.LayoutJob, RecompressJob} {
		_, err := s.config.Catalog.Jobs.Open(ctx, kind, image.Tree.String())
		if err != nil && !errors.Is(err, catalog.ErrNotFound) {
			return d, err
		}
		d.Pending = d.Pending || err == nil
	}
	packed := map[chunk.ID]int{}
	if locations != nil {
		for _, p := range locations.Startups() {
			d.Packs = append(d.Packs, wire.StartupPack{Pack: p.Pack.String(), Units: len(p.Units), Bytes: p.Bytes(),
				AtMount: p.AtMount, Triggers: len(p.Triggers)})
		}
		if len(kept) > 0 {
			if packed, err = s.packed(ctx, image.Tree, locations); err != nil {
				return d, err
			}
		}
	}
	for _, w := range plan.Workloads(kept) {
		d.Workloads = append(d.Workloads, describe(w, packed))
	}
	return d, nil
}

// describe returns what a workload reads, and which packs have its chunks.
func describe(w plan.Workload, packed map[chunk.ID]int) wire.Workload {
	sample := w.Samples[len(w.Samples)-1]
	d := wire.Workload{ID: w.ID(), Starts: w.Starts, Ranges: int64(len(sample.Entries)), First: []string{},
		Packs: []int{}}
	files := map[string]bool{}
	for _, e := range sample.Entries {
		if !files[e.Path] && len(d.First) < firstFiles {
			d.First = append(d.First, e.Path)
		}
		files[e.Path] = true
		d.Bytes += e.Length
		for _, id := range e.Chunks {
			if p, laid := packed[id]; laid && !slices.Contains(d.Packs, p) {
				d.Packs = append(d.Packs, p)
			}
		}
	}
	d.Files = int64(len(files))
	slices.Sort(d.Packs)
	return d
}

// packed maps each chunk that is in a startup pack to the pack's position in the locations.
func (s *Service) packed(ctx context.Context, tree chunk.ID, locations *index.Locations) (chunks map[chunk.ID]int,
	err error) {
	t, err := s.trees.open(ctx, tree)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	places := map[chunk.ID]int{}
	for i, p := range locations.Startups() {
		places[p.Pack] = i
	}
	chunks = map[chunk.ID]int{}
	return chunks, locations.Each(func(extent int64, u chunk.Unit) error {
		place, startup := places[u.Pack]
		if !startup {
			return nil
		}
		x, err := t.Extent(extent)
		chunks[x.ID] = place
		return err
	})
}
