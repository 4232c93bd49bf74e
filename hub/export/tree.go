package export

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"sync"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/hub/objects"
	"lighter/mirror/files"
	"lighter/wire"
)

// plan says what a tree needs.
type plan struct {
	tree      *wantedTree
	locations []byte // as they are served
	packs     map[chunk.ID]bool
	units     map[chunk.Unit]bool
}

// plan reads the locations of a tree, and verifies them.
func (r *run) plan(ctx context.Context, t *wantedTree) (*plan, error) {
	o, err := r.Objects.Open(ctx, objects.LocationsKey(t.locations))
	if err != nil {
		return nil, err
	}
	defer o.Close()
	p := &plan{tree: t, packs: map[chunk.ID]bool{}, units: map[chunk.Unit]bool{}}
	if p.locations, err = io.ReadAll(o); err != nil {
		return nil, err
	}
	locations, err := openLocations(p.locations, t.id, t.locations, -1)
	if err != nil {
		return nil, err
	}
	return p, locations.Each(func(_ int64, unit chunk.Unit) error {
		if !unit.IsZero() {
			p.packs[unit.Pack], p.units[unit] = true, true
		}
		return nil
	})
}

// openLocations opens locations as they are served. want is the digest of their plain bytes; zero:
// any. extents is the number of the tree's extents, or -1.
func openLocations(served []byte, tree, want chunk.ID, extents int64) (*index.Locations, error) {
	z, err := compress.Reader(bytes.NewReader(served))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	plain, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("locations of tree %s: %w", tree.Short(), err)
	}
	if got := chunk.Sum(plain); !want.IsZero() && got != want {
		return nil, fmt.Errorf("locations %s: the digest of their bytes is %s", want.Short(), got.Short())
	}
	return index.OpenLocations(bytes.NewReader(plain), int64(len(plain)), tree, extents)
}

// packsOf adds the packs that locations name.
func packsOf(l *index.Locations, to map[chunk.ID]bool) error {
	return l.Each(func(_ int64, unit chunk.Unit) error {
		if !unit.IsZero() {
			to[unit.Pack] = true
		}
		return nil
	})
}

// packPath returns the path of the directory with a pack's units.
func packPath(domain string, id chunk.ID) string {
	return path.Dir(wire.UnitPath(domain, chunk.Unit{Pack: id}))
}

// paths lists what copyTree writes: files, and the directories of packs.
func (p *plan) paths(domain string) (paths []string) {
	for id := range p.packs {
		paths = append(paths, packPath(domain, id))
	}
	paths = append(paths, wire.LocationsPath(domain, p.tree.id), wire.IndexPath(domain, p.tree.id))
	for _, s := range p.tree.chains {
		paths = append(paths, wire.TreePath(domain, s.Chain))
	}
	return paths
}

// copyUnlessWhole copies a tree unless the mirror has all of it. For that it reads no index.
func (r *run) copyUnlessWhole(ctx context.Context, p *plan) error {
	if r.isStale(p.tree) {
		return r.copyTree(ctx, p)
	}
	for unit := range p.units {
		has, err := r.unitsOf(ctx, unit.Pack)
		if err != nil {
			return err
		}
		if !has[wire.UnitPath(r.Domain, unit)] {
			return r.copyTree(ctx, p)
		}
	}
	return nil
}

// unitsOf returns the paths of a pack's units that the mirror has.
func (r *run) unitsOf(ctx context.Context, id chunk.ID) (map[string]bool, error) {
	if has := r.listed[id]; has != nil {
		return has, nil
	}
	dir := packPath(r.Domain, id)
	names, err := r.target.Names(ctx, dir)
	if err != nil {
		return nil, err
	}
	has := map[string]bool{}
	for _, name := range names {
		has[dir+"/"+name] = true
	}
	r.listed[id] = has
	return has, nil
}

// copyTree copies the units of a tree, then its locations, its index, and the statements about it.
func (r *run) copyTree(ctx context.Context, p *plan) error {
	stored, err := os.CreateTemp(r.Scratch, "export-*")
	if err != nil {
		return err
	}
	defer removeTemp(stored)
	plain, err := os.CreateTemp(r.Scratch, "export-*")
	if err != nil {
		return err
	}
	defer removeTemp(plain)
	size, err := r.readIndex(ctx, p.tree.id, stored, plain)
	if err != nil {
		return err
	}
	extents, err := index.OpenMap(plain, p.tree.id, index.NewPages(1))
	if err != nil {
		return err
	}
	locations, err := openLocations(p.locations, p.tree.id, p.tree.locations, extents.Extents)
	if err != nil {
		return err
	}
	if err := r.copyUnits(ctx, p, extents, locations); err != nil {
		return err
	}
	name, value := wire.LocationsPath(r.Domain, p.tree.id), p.tree.locations.String()
	if r.state.Files[name] != value {
		if err := r.write(ctx, name, value, p.locations); err != nil {
			return err
		}
	}
	if name := wire.IndexPath(r.Domain, p.tree.id); r.state.Files[name] == "" {
		if err := r.put(ctx, name, stored, size); err != nil {
			return err
		}
		r.state.Files[name] = isComplete
	}
	for _, s := range p.tree.chains {
		b, err := json.Marshal(s)
		if err != nil {
			return err
		}
		if err := r.writeSmall(ctx, wire.TreePath(r.Domain, s.Chain), append(b, '\n')); err != nil {
			return err
		}
	}
	return nil
}

func removeTemp(file *os.File) { _ = errors.Join(file.Close(), os.Remove(file.Name())) }

// readIndex reads an index, as it is served, into stored, verifies it, and writes its extent map to
// plain. It returns the bytes of stored.
func (r *run) readIndex(ctx context.Context, tree chunk.ID, stored, plain *os.File) (int, error) {
	o, err := r.Objects.Open(ctx, objects.IndexKey(tree))
	if err != nil {
		return 0, err
	}
	defer o.Close()
	size, err := io.Copy(stored, o)
	if err == nil {
		_, err = stored.Seek(0, io.SeekStart)
	}
	if err != nil {
		return 0, err
	}
	z, err := compress.Reader(stored)
	if err != nil {
		return 0, err
	}
	defer z.Close()
	if _, err := index.Receive(z, tree, plain, io.Discard); err != nil {
		return 0, err
	}
	_, err = stored.Seek(0, io.SeekStart)
	return int(size), err
}

// copyUnits copies the units of a tree that the mirror does not have, several at a time.
func (r *run) copyUnits(ctx context.Context, p *plan, extents *index.Map, locations *index.Locations) error {
	all, err := files.WantedUnits(extents, locations)
	if err != nil {
		return err
	}
	has := map[string]bool{}
	for id := range p.packs {
		units, err := r.unitsOf(ctx, id)
		if err != nil {
			return err
		}
		maps.Copy(has, units)
		delete(r.listed, id) // it has more units soon
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	var once sync.Once
	for _, w := range all {
		name := w.Path(r.Domain)
		if has[name] {
			continue
		}
		if w.Unit.IsZero() { // nodes find such a chunk at the hub only
			once.Do(func() { r.Log.Warn("the locations of a tree do not name all units", "tree", p.tree.id.Short()) })
			continue
		}
		group.Go(func() error {
			encoded, err := r.readUnit(ctx, w.Unit)
			if err == nil {
				err = w.Check(name, encoded)
			}
			if err != nil {
				return err
			}
			return r.put(ctx, name, bytes.NewReader(encoded), len(encoded))
		})
	}
	return group.Wait()
}

func (r *run) readUnit(ctx context.Context, unit chunk.Unit) ([]byte, error) {
	o, err := r.Objects.OpenUnit(ctx, unit)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	return io.ReadAll(io.LimitReader(o, pack.MaxStored+1))
}
