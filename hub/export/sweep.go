package export

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/wire"
)

// removeNames removes what the mirror answers about chains and manifests that no image has.
func (r *run) removeNames(ctx context.Context, chains []catalog.ImageChain) error {
	wanted := map[string]bool{}
	for _, c := range chains {
		wanted[wire.ChainPath(r.Domain, c.Link.Chain)] = true
		wanted[wire.ManifestPath(r.Domain, c.Digest)] = true
	}
	var gone []string
	for path := range r.state.Files {
		if !wanted[path] && (strings.HasPrefix(path, wire.ChainPath(r.Domain, "")) ||
			strings.HasPrefix(path, wire.ManifestPath(r.Domain, ""))) {
			gone = append(gone, path)
		}
	}
	return r.remove(ctx, gone)
}

// remove removes files, and forgets them. Before that it notes that they may be missing: if the run
// is killed, a later one must not take them for present. The note is lost if the disk is full; then
// only the daily look finds out.
func (r *run) remove(ctx context.Context, paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	for _, path := range paths {
		if _, isFile := r.state.Files[path]; isFile {
			r.state.Files[path] = ""
		}
	}
	if err := r.save(ctx); err != nil && !jobs.IsDisk(err) {
		return err
	}
	for part := range slices.Chunk(paths, 100) {
		if err := r.target.Remove(ctx, part); err != nil {
			return err
		}
		for _, path := range part {
			delete(r.state.Files, path)
		}
		r.removed.Add(int64(len(part)))
	}
	return nil
}

// sweep removes what the hub itself has deleted: first the trees, then the packs. The packs that
// the locations of a tree still name stay: its new locations could not be copied.
func (r *run) sweep(ctx context.Context, trees map[chunk.ID]*wantedTree) error {
	packs, err := r.Catalog.Checks.PackIDs(ctx)
	if err != nil {
		return err
	}
	statements := map[string]bool{}
	for _, t := range trees {
		for _, s := range t.chains {
			statements[wire.TreePath(r.Domain, s.Chain)] = true
		}
	}
	var gone []string
	for path := range r.state.Files {
		chain, ok := strings.CutPrefix(path, wire.TreePath(r.Domain, ""))
		if !ok || statements[path] {
			continue
		}
		if _, err := r.Catalog.Statement(ctx, chain); errors.Is(err, catalog.ErrNotFound) {
			gone = append(gone, path)
		} else if err != nil {
			return err
		}
	}
	for _, id := range r.ids("locations") {
		if trees[id] == nil {
			gone = append(gone, wire.IndexPath(r.Domain, id), wire.LocationsPath(r.Domain, id))
		}
	}
	if err := r.remove(ctx, gone); err != nil {
		return err
	}
	named, err := r.stillNamed(ctx, trees)
	if err != nil {
		return err
	}
	for _, id := range r.ids("packs") {
		if packs[id] || named[id] {
			continue
		}
		if err := r.removePack(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// stillNamed returns the packs that the mirror's own locations name, of the trees that are stale.
func (r *run) stillNamed(ctx context.Context, trees map[chunk.ID]*wantedTree) (map[chunk.ID]bool, error) {
	named := map[chunk.ID]bool{}
	for _, t := range trees {
		path := wire.LocationsPath(r.Domain, t.id)
		if value := r.state.Files[path]; value == t.locations.String() || value == "" {
			continue
		}
		served, err := r.target.Read(ctx, path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		locations, err := openLocations(served, t.id, chunk.ID{}, -1)
		if err == nil {
			err = packsOf(locations, named)
		}
		if err != nil {
			return nil, err
		}
	}
	return named, nil
}

// removePack removes all units of a pack.
func (r *run) removePack(ctx context.Context, id chunk.ID) error {
	dir := packPath(r.Domain, id)
	names, err := r.target.Names(ctx, dir)
	if err != nil {
		return err
	}
	var paths []string
	for _, name := range names {
		paths = append(paths, dir+"/"+name)
	}
	if err := r.remove(ctx, paths); err != nil {
		return err
	}
	delete(r.state.Files, dir)
	return nil
}
