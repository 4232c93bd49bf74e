package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/pack"
	"lighter/format/tree"
	"lighter/hub/away"
	"lighter/hub/objects"
	"lighter/hub/oci"
)

// unitCheck is a unit with the chunks that it should have.
type unitCheck struct {
	chunk.Unit
	refs []chunk.Ref
}

// checkChunks reads every chunk of the image's layers. Files that upper layers hide are included:
// they are part of the trees below.
func (v *verification) checkChunks(ctx context.Context) error {
	lengths := map[chunk.ID]int64{}
	if err := v.entries(ctx, func(_ *oci.Layer, e *tree.Entry) {
		for _, extent := range e.Content.Extents {
			if extent.ID != (chunk.ID{}) {
				lengths[extent.ID] = extent.Length
			}
		}
	}); err != nil {
		return err
	}
	units, err := v.unitsOf(ctx, lengths)
	if err != nil {
		return err
	}
	if err := v.checkUnits(ctx, units); err != nil {
		return err
	}
	return v.noteFiles(ctx)
}

// unitsOf groups chunks, given with their lengths, by the units that should have them.
func (v *verification) unitsOf(ctx context.Context, lengths map[chunk.ID]int64) ([]unitCheck, error) {
	known, err := v.catalog.Units(ctx, slices.Collect(maps.Keys(lengths)))
	if err != nil {
		return nil, err
	}
	byUnit := map[chunk.Unit][]chunk.Ref{}
	for id, length := range lengths {
		byUnit[known[id]] = append(byUnit[known[id]], chunk.Ref{ID: id, Length: uint32(length)})
	}
	var units []unitCheck
	for unit, refs := range byUnit {
		units = append(units, unitCheck{unit, refs})
	}
	slices.SortFunc(units, func(a, b unitCheck) int {
		return cmp.Or(bytes.Compare(a.Pack[:], b.Pack[:]), cmp.Compare(a.N, b.N))
	})
	return units, nil
}

// checkUnits reads units and verifies the chunks in them.
func (v *verification) checkUnits(ctx context.Context, units []unitCheck) error {
	total := int64(0)
	for _, u := range units {
		for _, ref := range u.refs {
			total += int64(ref.Length)
		}
	}
	progress := v.progress.Step("check", "chunks", total)
	bad := make([][]chunk.ID, len(units))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, u := range units {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			var err error
			if bad[i], err = v.checkUnit(ctx, u); err != nil {
				return err
			}
			for _, ref := range u.refs {
				progress.Add(int(ref.Length))
			}
			return nil
		})
	}
	err := group.Wait()
	for _, id := range slices.Concat(bad...) {
		v.bad[id] = true
	}
	return err
}

// checkUnit returns the chunks that a unit should have and does not have.
func (v *verification) checkUnit(ctx context.Context, u unitCheck) (bad []chunk.ID, err error) {
	if u.IsZero() {
		for _, ref := range u.refs {
			v.found.add("chunk %s is in no pack", ref.ID)
			bad = append(bad, ref.ID)
		}
		return bad, nil
	}
	decoded, err := v.readUnit(ctx, u.Unit)
	if err != nil {
		if errors.Is(err, objects.ErrNotFound) { // one problem for all units of the pack
			v.found.add("%s is missing", objects.PackKey(u.Pack))
		} else if err := v.note(ctx, "unit "+u.String(), err); err != nil {
			return nil, err
		}
		for _, ref := range u.refs {
			bad = append(bad, ref.ID)
		}
		return bad, nil
	}
	for _, ref := range u.refs {
		if _, err := decoded.Lookup(ref.ID); err != nil {
			v.found.add("unit %s: %v", u.Unit, err)
			bad = append(bad, ref.ID)
		}
	}
	return bad, nil
}

func (v *verification) readUnit(ctx context.Context, at chunk.Unit) (*pack.Unit, error) {
	return away.Retry(ctx, v.isAway, func() (*pack.Unit, error) { return v.objects.ReadUnit(ctx, at) })
}
