package fsck

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/hub/ingest"
	"lighter/hub/objects"
	"lighter/hub/oci"
	"lighter/hub/report"
	"lighter/wire"
)

// repair is one attempt to make lost objects again. Each change leaves the stores consistent with
// each other, so an attempt may end after any of them.
type repair struct {
	*Checker
	progress *report.Progress
	failed   map[string]error // why an object could not be made again, by key

	packs []chunk.ID          // lost ones
	left  map[chunk.ID]string // lost chunks that were not found yet, with the key of their pack
	// unneeded has lost chunks that are in no layer, like left. Only a damaged pack may still have
	// them.
	unneeded map[chunk.ID]string
	layers   map[string][]int64 // that have lost chunks, by diffID
	records  map[string]string  // keys of lost layer records, by diffID
	trees    map[chunk.ID]catalog.TreeOf
	// needs has the trees to renew, by key of the lost object. The key "" has trees that have a
	// layer with lost chunks. If such a tree cannot be renewed, that is reported of no object.
	needs   map[string][]chunk.ID
	startup []chunk.ID // lost startup packs
}

// repair makes lost objects again. It returns why that failed, by key.
func (c *Checker) repair(ctx context.Context, all []lost, progress *report.Progress) (map[string]error, error) {
	r := &repair{Checker: c, progress: progress, failed: map[string]error{}, left: map[chunk.ID]string{},
		unneeded: map[chunk.ID]string{}, layers: map[string][]int64{}, records: map[string]string{},
		trees: map[chunk.ID]catalog.TreeOf{}, needs: map[string][]chunk.ID{}}
	for _, step := range []func(context.Context, []lost) error{
		r.plan, r.salvage, r.restoreLayers, r.renewTrees, r.dropStartupPacks,
	} {
		if err := step(ctx, all); err != nil {
			return nil, err
		}
	}
	return r.failed, nil
}

// plan finds out what the lost objects are needed for.
func (r *repair) plan(ctx context.Context, all []lost) error {
	var numbers []int64
	ids := map[int64]chunk.ID{}
	for _, l := range all {
		switch l.kind {
		case catalog.Records:
			r.records[diffIDOf(l.id)] = l.key
			continue
		case catalog.Packs:
			chunks, err := r.Catalog.Repairs.PackChunks(ctx, l.id)
			if err != nil {
				return err
			}
			if len(chunks) > 0 {
				r.packs = append(r.packs, l.id)
			} else {
				r.startup = append(r.startup, l.id)
			}
			for _, k := range chunks {
				r.unneeded[k.ID], ids[k.N] = l.key, k.ID
				numbers = append(numbers, k.N)
			}
		}
		find := func() ([]catalog.TreeOf, error) { return r.Catalog.Repairs.TreesNaming(ctx, l.id) }
		if err := r.need(ctx, l.key, find); err != nil {
			return err
		}
		if l.kind != catalog.Packs && len(r.needs[l.key]) == 0 {
			r.failed[l.key] = errors.New("no chain has its tree")
		}
	}
	if len(numbers) == 0 {
		return nil
	}
	slices.Sort(numbers)
	var err error
	if r.layers, err = r.Catalog.Repairs.LayersWith(ctx, numbers); err != nil {
		return err
	}
	for diffID, needed := range r.layers {
		for _, n := range needed {
			if key, isUnneeded := r.unneeded[ids[n]]; isUnneeded {
				r.left[ids[n]] = key
				delete(r.unneeded, ids[n])
			}
		}
		find := func() ([]catalog.TreeOf, error) { return r.Catalog.Repairs.TreesWith(ctx, diffID) }
		if err := r.need(ctx, "", find); err != nil {
			return err
		}
	}
	return nil
}

// need adds the trees that find returns to those that are to be renewed for the object with a key.
func (r *repair) need(ctx context.Context, key string, find func() ([]catalog.TreeOf, error)) error {
	trees, err := find()
	if err != nil {
		return err
	}
	for _, t := range trees {
		r.trees[t.Tree] = t
		r.needs[key] = append(r.needs[key], t.Tree)
	}
	return ctx.Err()
}

// salvage copies the chunks of damaged packs that can still be read to new packs.
func (r *repair) salvage(ctx context.Context, all []lost) error {
	for _, l := range all {
		if !slices.Contains(r.packs, l.id) {
			continue
		}
		size, err := r.Catalog.Checks.ObjectSize(ctx, catalog.Packs, l.id)
		if err != nil && !errors.Is(err, catalog.ErrNotFound) {
			return err
		}
		if r.room(size) != nil { // restoreLayers says so
			continue
		}
		restored, err := r.Ingester.Restore(ctx, []chunk.ID{l.id}, func(ctx context.Context, keep ingest.Keep) error {
			return r.readUnits(ctx, l, keep)
		})
		if err != nil {
			return err
		}
		r.found(restored)
	}
	return nil
}

// errNoRoom marks errors of Config.Room.
var errNoRoom = errors.New("there is no room for it")

// room is Config.Room.
func (c *Checker) room(bytes int64) error {
	if err := c.Room(bytes); err != nil {
		return fmt.Errorf("%w: %w", errNoRoom, err)
	}
	return nil
}

// readUnits calls keep for each lost chunk of a pack that can be read.
func (r *repair) readUnits(ctx context.Context, l lost, keep ingest.Keep) error {
	units, err := r.Objects.CountUnits(ctx, l.id)
	if err != nil {
		return r.transient(ctx, err)
	}
	for n := range units {
		unit, err := r.Objects.ReadUnit(ctx, chunk.Unit{Pack: l.id, N: uint32(n)})
		if err != nil {
			if err := r.transient(ctx, err); err != nil {
				return err
			}
			continue
		}
		for i := range unit.Len() {
			id := unit.Ref(i).ID
			data, err := unit.Chunk(i)
			_, isLeft := r.left[id]
			_, isUnneeded := r.unneeded[id]
			if err != nil || !isLeft && !isUnneeded {
				continue
			}
			if err := keep(id, data); err != nil {
				return err
			}
		}
	}
	return nil
}

// found removes restored chunks from the lost ones.
func (r *repair) found(restored map[chunk.ID]bool) {
	for id := range restored {
		delete(r.left, id)
		delete(r.unneeded, id)
	}
}

// restoreLayers reads the layers again that have lost chunks or lost records.
func (r *repair) restoreLayers(ctx context.Context, _ []lost) error {
	diffIDs := slices.Collect(maps.Keys(r.records))
	for diffID := range r.layers {
		if r.records[diffID] == "" {
			diffIDs = append(diffIDs, diffID)
		}
	}
	slices.Sort(diffIDs)
	var why []error
	for _, diffID := range diffIDs {
		if r.records[diffID] == "" && len(r.left) == 0 {
			continue
		}
		err := r.restoreLayer(ctx, diffID)
		if err == nil {
			continue
		}
		if err := r.transient(ctx, err); err != nil {
			return err
		}
		why = append(why, err)
		if key := r.records[diffID]; key != "" {
			r.failed[key] = err
		}
	}
	for _, key := range r.unneeded { // the catalog has the pack until a collection
		r.failed[key] = errUnneeded
	}
	missing := map[string]int{}
	for _, key := range r.left {
		missing[key]++
	}
	for key, n := range missing {
		r.failed[key] = errors.Join(append([]error{fmt.Errorf("%d of its chunks were not found", n)}, why...)...)
	}
	return nil
}

// restoreLayer reads one of a layer's blobs, the first one that is intact.
func (r *repair) restoreLayer(ctx context.Context, diffID string) error {
	blobs, err := r.Catalog.Repairs.LayerBlobs(ctx, diffID)
	if err != nil {
		return err
	}
	errs := []error{}
	for _, b := range blobs {
		err := r.restoreBlob(ctx, diffID, b)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		errs = append(errs, fmt.Errorf("blob %s of image %s: %w", wire.ShortDigest(b.Digest), b.Image, err))
	}
	if len(blobs) == 0 {
		errs = append(errs, fmt.Errorf("no image has layer %s", wire.ShortDigest(diffID)))
	}
	return errors.Join(errs...)
}

func (r *repair) restoreBlob(ctx context.Context, diffID string, b catalog.LayerBlob) (err error) {
	ref, err := wire.ParseName(b.Image)
	if err != nil {
		return err
	}
	if err := r.room(b.Size); err != nil { // what is restored is about as large as the blob
		return err
	}
	dir, err := r.Publisher.TempDir("repair")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "record")
	restored, err := r.Ingester.Restore(ctx, r.packs, func(ctx context.Context, keep ingest.Keep) error {
		blob, err := r.Registry.Repository(ref.Repository).Open(ctx, b.Digest)
		if err != nil {
			return err
		}
		defer blob.Close()
		l := oci.Layer{Digest: b.Digest, MediaType: b.MediaType, Size: b.Size, DiffID: diffID}
		onRead := r.progress.Step("repair", wire.ShortDigest(b.Digest), b.Size).Add
		return ingest.VerifyLayer(ctx, l, blob, r.Limits, path, onRead, func(id chunk.ID, data []byte) error {
			if _, isLost := r.left[id]; !isLost {
				return nil
			}
			return keep(id, data)
		})
	})
	if err != nil {
		return err
	}
	r.found(restored)
	if r.records[diffID] == "" {
		return nil
	}
	return r.Ingester.RestoreRecord(ctx, diffID, path)
}

// renewTrees makes indexes and locations again: of trees that have lost theirs, whose locations
// name lost packs, or whose layers have lost chunks.
func (r *repair) renewTrees(ctx context.Context, _ []lost) error {
	failed := map[chunk.ID]error{}
	for id, t := range r.trees {
		err := r.Trees.Renew(ctx, t)
		if err == nil {
			continue
		}
		if err := r.transient(ctx, err); err != nil {
			return err
		}
		failed[id] = err
		r.Log.Warn("cannot renew a tree", "tree", id.Short(), "err", err)
	}
	for key, trees := range r.needs {
		for _, id := range trees {
			if key != "" && failed[id] != nil {
				r.failed[key] = failed[id]
			}
		}
	}
	return nil
}

// errUnneeded is the reason why a lost pack is not made again in which the catalog places no chunk
// of an image: no image needs its chunks, or other packs have them. Collection forgets the pack
// when no locations name it.
var errUnneeded = errors.New("no image needs it, or only with older locations")

// dropStartupPacks forgets lost packs that no tree names any more: startup packs and rewritten
// ones.
func (r *repair) dropStartupPacks(ctx context.Context, _ []lost) error {
	for _, id := range r.startup {
		if r.failed[objects.PackKey(id)] != nil {
			continue
		}
		if err := r.Publisher.Delete(ctx, []string{objects.PackKey(id)}, func(claim catalog.Claim) error {
			return r.Catalog.Repairs.DropLost(ctx, claim, id)
		}); err != nil {
			return err
		}
		known, err := r.Catalog.HasPack(ctx, id)
		if err != nil {
			return err
		}
		if known {
			r.failed[objects.PackKey(id)] = errUnneeded
		}
	}
	return nil
}
