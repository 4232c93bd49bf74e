package startup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/index"
	"lighter/format/trace"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/report"
	"lighter/hub/startup/plan"
	"lighter/wire"
)

// Export returns the recordings of a tree in package trace's text encoding, without traces that were not
// merged yet. Errors are report.ErrBusy and the catalog's.
func (s *Service) Export(ctx context.Context, tree chunk.ID) ([]byte, error) {
	if err := enter(ctx, s.reading, 1); err != nil {
		return nil, err
	}
	defer s.reading.Release(1)
	kept, _, err := s.recordings(ctx, tree)
	return trace.EncodeText(kept), err
}

// Known reports whether a tree has recordings.
func (s *Service) Known(ctx context.Context, tree chunk.ID) (bool, error) {
	kept, _, err := s.recordings(ctx, tree)
	return len(kept) > 0, err
}

// Import adds exported recordings, perhaps of another image, to those of a tree. Errors are as for Take.
func (s *Service) Import(ctx context.Context, tree chunk.ID, text []byte) error {
	if err := enter(ctx, s.taking, atOnce); err != nil { // it may be long
		return err
	}
	defer s.taking.Release(atOnce)
	recordings, err := trace.ParseText(text)
	if err != nil {
		return fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	if len(recordings) == 0 {
		return nil
	}
	if err := s.catalog.AddRecordings(ctx, tree, squeeze(text), time.Now()); err != nil {
		return err
	}
	s.Used(tree)
	s.wakeUp()
	return nil
}

// Forget removes the workload whose ID begins with workload from a tree's recordings. If workload is
// empty it removes all recordings, and traces that were not merged yet. Errors are report.ErrBusy,
// report.ErrInvalid if several workloads match, catalog.ErrNotFound if none does, and those of the
// stores.
func (s *Service) Forget(ctx context.Context, tree chunk.ID, workload string) (f wire.Forgotten, err error) {
	if err := enter(ctx, s.taking, 1); err != nil {
		return f, err
	}
	defer s.taking.Release(1)
	for range maxTries {
		if f, err = s.forget(ctx, tree, workload); !errors.Is(err, catalog.ErrChanged) {
			break
		}
	}
	if errors.Is(err, catalog.ErrChanged) {
		err = report.ErrBusy
	}
	if err == nil && workload == "" { // otherwise the limits would keep new traces out
		s.senders.forget(tree)
	}
	s.wakeUp()
	return f, err
}

func (s *Service) forget(ctx context.Context, tree chunk.ID, workload string) (f wire.Forgotten, err error) {
	kept, before, err := s.recordings(ctx, tree)
	if err != nil {
		return f, err
	}
	left, gone := plan.Without(kept, workload)
	f.Workloads = []string{}
	for _, w := range gone {
		f.Workloads = append(f.Workloads, w.ID())
		f.Starts += w.Starts
	}
	switch {
	case workload == "":
	case len(gone) == 0:
		return f, fmt.Errorf("workload %s: %w", workload, catalog.ErrNotFound)
	case len(gone) > 1:
		return f, fmt.Errorf("%w: %s begins the IDs of %d workloads", report.ErrInvalid, workload, len(gone))
	}
	f.Waiting, err = s.catalog.CutRecordings(ctx, tree, before, squeeze(trace.EncodeText(left)), workload == "")
	return f, err
}

// Describe returns the workloads and startup packs of a ready image. Errors are report.ErrBusy and those
// of the stores.
func (s *Service) Describe(ctx context.Context, image catalog.Image) (wire.Starts, error) {
	d := wire.Starts{Name: image.Name, Digest: image.Digest, Platform: image.Platform, Tree: image.Tree.String(),
		Workloads: []wire.Workload{}, Packs: []wire.StartupPack{}}
	if err := enter(ctx, s.reading, 1); err != nil {
		return d, err
	}
	defer s.reading.Release(1)
	kept, _, err := s.recordings(ctx, image.Tree)
	if err != nil {
		return d, err
	}
	locations, err := s.locations(ctx, image.Tree)
	if errors.Is(err, catalog.ErrNotFound) || errors.Is(err, objects.ErrNotFound) { // they are being made
		locations, err = nil, nil
	}
	if err != nil {
		return d, err
	}
	due, err := s.catalog.DueOf(ctx, image.Tree)
	if err != nil && !errors.Is(err, catalog.ErrNotFound) {
		return d, err
	}
	d.Pending, d.Lost = !due.At.IsZero() || s.isLoose(image.Tree), due.Lost.UTC()
	packed := map[chunk.ID]int{}
	if locations != nil {
		for _, p := range locations.Startups() {
			d.Packs = append(d.Packs, wire.StartupPack{Pack: p.Pack.String(), Units: len(p.Units), Bytes: p.Bytes(), AtMount: p.AtMount, Triggers: len(p.Triggers)})
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

// firstFiles is the number of files named for each workload, so that users can recognize it.
const firstFiles = 8

// describe says what a workload reads, and in which packs that is.
func describe(w plan.Workload, packed map[chunk.ID]int) wire.Workload {
	sample := w.Samples[len(w.Samples)-1]
	d := wire.Workload{ID: w.ID(), Starts: w.Starts, Ranges: int64(len(sample.Entries)), First: []string{}, Packs: []int{}}
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

// locations reads the locations that a tree has now.
func (s *Service) locations(ctx context.Context, tree chunk.ID) (*index.Locations, error) {
	id, err := s.catalog.Locations(ctx, tree)
	if err != nil {
		return nil, err
	}
	o, err := s.objects.Open(ctx, objects.LocationsKey(id))
	if err != nil {
		return nil, err
	}
	defer o.Close()
	z, err := compress.Reader(o)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	b, err := io.ReadAll(z)
	if err != nil {
		return nil, err
	}
	return index.OpenLocations(bytes.NewReader(b), int64(len(b)), tree, -1)
}

// packed says in which of a tree's startup packs its chunks are.
func (s *Service) packed(ctx context.Context, tree chunk.ID, locations *index.Locations) (chunks map[chunk.ID]int, err error) {
	t, err := s.open(ctx, tree)
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
