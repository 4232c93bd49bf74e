package ingest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/hub/objects"
)

// checkIndex reads the tree's index, its locations, and every chunk that it
// names.
func (v *verification) checkIndex(ctx context.Context) error {
	extents, err := v.readIndex(ctx)
	if err != nil {
		return v.note(ctx, "index", err)
	}
	defer extents.close()
	hints, err := v.readLocations(ctx, extents)
	if err != nil {
		v.found.add("locations: %v", err)
	}
	units, err := v.gather(ctx, extents, hints)
	if err != nil {
		return err
	}
	return v.checkUnits(ctx, units)
}

// extentFile is an extent map in a file.
type extentFile struct {
	*index.Map
	file *os.File
}

func (e *extentFile) close() { _ = e.file.Close() } // it goes with the scratch space

// decompress opens a compressed object.
func (v *verification) decompress(ctx context.Context, key string) (plain io.Reader, closeAll func(), err error) {
	o, err := v.objects.Open(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	z, err := zstd.NewReader(o)
	if err != nil {
		_ = o.Close() // it was only read
		return nil, nil, err
	}
	return z, func() { z.Close(); _ = o.Close() }, nil
}

// readIndex reads the index object, which verifies all of it.
func (v *verification) readIndex(ctx context.Context) (*extentFile, error) {
	z, closeAll, err := v.decompress(ctx, objects.IndexKey(v.row.Tree))
	if err != nil {
		return nil, err
	}
	defer closeAll()
	file, err := os.Create(filepath.Join(v.dir, "map"))
	if err != nil {
		return nil, err
	}
	if _, err := index.Receive(z, v.row.Tree, file, io.Discard); err != nil {
		_ = file.Close() // it goes with the scratch space
		return nil, err
	}
	m, err := index.OpenMap(file, v.row.Tree)
	if err != nil {
		_ = file.Close() // it goes with the scratch space
		return nil, err
	}
	return &extentFile{m, file}, nil
}

func (v *verification) readLocations(ctx context.Context, extents *extentFile) (*index.Locations, error) {
	z, closeAll, err := v.decompress(ctx, objects.LocationsKey(v.row.Tree))
	if err != nil {
		return nil, err
	}
	defer closeAll()
	b, err := io.ReadAll(z)
	if err != nil {
		return nil, err
	}
	return index.OpenLocations(bytes.NewReader(b), int64(len(b)), v.row.Tree, extents.Extents)
}

// unitCheck is a unit with the chunks that it has to hold.
type unitCheck struct {
	chunk.Unit
	refs []chunk.Ref
}

// gather sorts the chunks of the tree by the units in which they should lie.
func (v *verification) gather(ctx context.Context, extents *extentFile, hints *index.Locations) ([]unitCheck, error) {
	byUnit := map[chunk.Unit][]chunk.Ref{}
	seen := map[chunk.ID]bool{}
	strange := 0
	for at := int64(0); at < extents.Extents; at += batchChunks {
		var ids []chunk.ID
		var refs []chunk.Ref
		for i := at; i < min(at+batchChunks, extents.Extents); i++ {
			e, err := extents.Extent(i)
			if err != nil {
				return nil, err
			}
			ids = append(ids, e.ID)
			refs = append(refs, chunk.Ref{ID: e.ID, Length: e.Length})
		}
		known, err := v.catalog.Units(ctx, ids)
		if err != nil {
			return nil, err
		}
		for i, ref := range refs {
			unit := known[ref.ID]
			if hints != nil {
				if hint, err := hints.Unit(at + int64(i)); err != nil || hint != unit {
					strange++
				}
			}
			if seen[ref.ID] {
				continue
			}
			seen[ref.ID] = true
			byUnit[unit] = append(byUnit[unit], ref)
		}
	}
	if strange > 0 {
		v.found.add("locations: %d of %d differ from the catalog", strange, extents.Extents)
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
	progress := v.job.item("check", "chunks", total)
	var mu sync.Mutex // guards bad
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, u := range units {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			bad := v.checkUnit(ctx, u)
			mu.Lock()
			for _, id := range bad {
				v.bad[id] = true
			}
			mu.Unlock()
			for _, ref := range u.refs {
				progress.add(int(ref.Length))
			}
			return nil
		})
	}
	return group.Wait()
}

// checkUnit returns the chunks that a unit should hold and does not.
func (v *verification) checkUnit(ctx context.Context, u unitCheck) (bad []chunk.ID) {
	if u.IsZero() {
		for _, ref := range u.refs {
			v.found.add("chunk %s is in no pack", ref.ID)
			bad = append(bad, ref.ID)
		}
		return bad
	}
	decoded, err := v.readUnit(ctx, u.Unit)
	if err != nil {
		if v.note(ctx, "unit "+u.String(), err) != nil {
			return nil // the work was ended
		}
		for _, ref := range u.refs {
			bad = append(bad, ref.ID)
		}
		return bad
	}
	places := make(map[chunk.ID]int, decoded.Len())
	for i := range decoded.Len() {
		places[decoded.Ref(i).ID] = i
	}
	for _, ref := range u.refs {
		i, there := places[ref.ID]
		err := fmt.Errorf("it does not hold chunk %s", ref.ID)
		if there {
			var plain []byte
			if plain, err = decoded.Chunk(i); err == nil {
				err = ref.Check(plain)
			}
		}
		if err != nil {
			v.found.add("unit %s: %v", u.Unit, err)
			bad = append(bad, ref.ID)
		}
	}
	return bad
}

func (v *verification) readUnit(ctx context.Context, u chunk.Unit) (*pack.Unit, error) {
	o, err := v.objects.OpenUnit(ctx, u)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	b, err := readAtMost(o, pack.MaxStored)
	if err != nil {
		return nil, err
	}
	return pack.DecodeUnit(b)
}
