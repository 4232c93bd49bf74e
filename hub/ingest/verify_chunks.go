package ingest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/format/tree"
	"lighter/hub/catalog"
	"lighter/hub/objects"
)

// checkTrees reads what the hub says of the trees of the image's chains, as far
// as they are made: statements, indexes and locations.
func (v *verification) checkTrees(ctx context.Context) error {
	for _, l := range v.layers {
		statement, err := v.catalog.Statement(ctx, l.Chain)
		if errors.Is(err, catalog.ErrNotFound) && l.n < l.of {
			continue
		}
		if err != nil {
			return err
		}
		what := ""
		if l.n < l.of {
			what = fmt.Sprintf("the first %d layers: ", l.n)
		}
		for _, key := range v.config.Keys { // each has to have signed it
			if err := statement.Verify(l.Chain, []ed25519.PublicKey{key.Public().(ed25519.PublicKey)}); err != nil {
				v.found.add("%sstatement about chain %s: %v", what, l.Chain, err)
			}
		}
		if err := v.checkIndex(ctx, what, statement.Tree); err != nil {
			return err
		}
	}
	return nil
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
	z, err := compress.Reader(o)
	if err != nil {
		_ = o.Close() // it was only read
		return nil, nil, err
	}
	return z, func() { z.Close(); _ = o.Close() }, nil
}

// readIndex reads the index object, which verifies all of it.
func (v *verification) readIndex(ctx context.Context, id chunk.ID) (*extentFile, error) {
	z, closeAll, err := v.decompress(ctx, objects.IndexKey(id))
	if err != nil {
		return nil, err
	}
	defer closeAll()
	file, err := os.Create(filepath.Join(v.dir, "map"))
	if err != nil {
		return nil, err
	}
	if _, err := index.Receive(z, id, file, io.Discard); err != nil {
		_ = file.Close() // it goes with the scratch space
		return nil, err
	}
	m, err := index.OpenMap(file, id, index.NewPages(1)) // it is read from one end to the other
	if err != nil {
		_ = file.Close() // it goes with the scratch space
		return nil, err
	}
	return &extentFile{m, file}, nil
}

// unitCheck is a unit with the chunks that it has to hold.
type unitCheck struct {
	chunk.Unit
	refs []chunk.Ref
}

// checkChunks reads every chunk that the image's layers brought: also of files
// that layers above hide, which are part of the trees below.
func (v *verification) checkChunks(ctx context.Context) error {
	lengths := map[chunk.ID]int64{}
	if err := v.entries(ctx, func(_ *layer, e *tree.Entry) {
		for _, extent := range e.Content.Extents {
			if extent.ID != (chunk.ID{}) {
				lengths[extent.ID] = extent.Length
			}
		}
	}); err != nil {
		return err
	}
	units, err := v.gather(ctx, lengths)
	if err != nil {
		return err
	}
	if err := v.checkUnits(ctx, units); err != nil {
		return err
	}
	return v.nameBad(ctx)
}

// gather sorts chunks by the units in which they should lie.
func (v *verification) gather(ctx context.Context, lengths map[chunk.ID]int64) ([]unitCheck, error) {
	byUnit := map[chunk.Unit][]chunk.Ref{}
	for ids := range slices.Chunk(slices.Collect(maps.Keys(lengths)), batchChunks) {
		known, err := v.catalog.Units(ctx, ids)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			byUnit[known[id]] = append(byUnit[known[id]], chunk.Ref{ID: id, Length: uint32(lengths[id])})
		}
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
	progress := v.story.Step("check", "chunks", total)
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
				progress.Add(int(ref.Length))
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
