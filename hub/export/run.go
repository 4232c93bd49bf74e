package export

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/mirror/files"
	"lighter/wire"
)

// run is one run of the export.
type run struct {
	*Exporter
	target target
	job    *jobs.Running
	state  state
	saved  chunk.ID // digest of the state that was saved last; zero: none
	full   bool     // look for each file, also if it did not change
	// listed has the units that the mirror has of some packs, by their paths.
	listed map[chunk.ID]map[string]bool

	failed []error
	again  atomic.Bool // something has changed meanwhile: look once more

	files, removed, bytes atomic.Int64 // what the run has done
}

// wantedTree is a tree that the mirror should have.
type wantedTree struct {
	id        chunk.ID
	locations chunk.ID
	chains    []*index.Statement
}

// all brings the mirror up to date. Errors about one tree or image do not end it.
func (r *run) all(ctx context.Context) error {
	chains, err := r.Catalog.ImageChains(ctx)
	if err != nil {
		return err
	}
	if r.full {
		if err := r.look(ctx); err != nil {
			return err
		}
	}
	if err := r.writeKeys(ctx); err != nil {
		return err
	}
	if err := r.lowerTrees(ctx, chains); err != nil {
		return err
	}
	trees, err := r.wanted(ctx, chains)
	if err != nil {
		return err
	}
	// With a full disk nothing more can be added. What is removed gives space back.
	added := r.addTrees(ctx, trees)
	if added == nil {
		added = r.writeNames(ctx, chains)
	}
	if added != nil && !jobs.IsDisk(added) {
		return added
	}
	if err := r.removeNames(ctx, chains); err != nil {
		return errors.Join(added, err)
	}
	if err := r.sweep(ctx, trees); err != nil {
		return errors.Join(added, err)
	}
	if r.full && added == nil && len(r.failed) == 0 {
		r.state.Checked, r.full = time.Now().UTC(), false
	}
	return errors.Join(added, r.save(ctx))
}

// look looks which files the mirror really has.
func (r *run) look(ctx context.Context) error {
	top := path.Dir(wire.KeyPath(r.Domain))
	has := map[string]bool{}
	for _, kind := range []string{"chains", "manifests", "trees", "indexes", "locations"} {
		names, err := r.target.Names(ctx, top+"/"+kind)
		if err != nil {
			return err
		}
		for _, name := range names {
			has[top+"/"+kind+"/"+name] = true
		}
	}
	for file := range r.state.Files {
		if !has[file] {
			r.state.Files[file] = "" // so the key is written again
		}
	}
	return nil
}

func (r *run) fail(err error) { r.failed = append(r.failed, err) }

// ends reports whether an error ends the run: the job was lost or interrupted, or the target is
// full or away.
func ends(ctx context.Context, err error) bool {
	return ctx.Err() != nil || jobs.IsRetried(err) && !errors.Is(err, catalog.ErrNotFound)
}

func (r *run) writeKeys(ctx context.Context) error {
	var text strings.Builder
	for _, key := range r.Keys {
		text.WriteString(index.FormatKey(key) + "\n")
	}
	return r.writeSmall(ctx, wire.KeyPath(r.Domain), []byte(text.String()))
}

// writeSmall writes a small file unless the mirror has it with these bytes.
func (r *run) writeSmall(ctx context.Context, path string, b []byte) error {
	sum := sha256.Sum256(b)
	value := hex.EncodeToString(sum[:16])
	if r.state.Files[path] == value {
		return nil
	}
	return r.write(ctx, path, value, b)
}

// write writes a file whose path was noted.
func (r *run) write(ctx context.Context, path, value string, b []byte) error {
	if err := r.put(ctx, path, bytes.NewReader(b), len(b)); err != nil {
		return err
	}
	r.state.Files[path] = value
	return nil
}

func (r *run) put(ctx context.Context, path string, body io.Reader, size int) error {
	for left := size; left > 0; { // the limiter's burst is less than an index may have
		n := min(left, r.Limiter.Burst())
		if err := r.Limiter.WaitN(ctx, n); err != nil {
			return err
		}
		left -= n
	}
	if err := r.target.Write(ctx, path, body); err != nil {
		return err
	}
	r.files.Add(1)
	r.bytes.Add(int64(size))
	return nil
}

// lowerTrees makes the trees of lower layers that do not exist, and holds all of them. A node may
// need one: an image that the hub does not know may share the layer.
func (r *run) lowerTrees(ctx context.Context, chains []catalog.ImageChain) error {
	seen, held := map[string]bool{}, map[chunk.ID]bool{}
	for i, c := range chains {
		if c.Link.Statement != nil || seen[c.Link.Chain] {
			continue
		}
		seen[c.Link.Chain] = true
		if c.Statement == nil {
			s, err := r.Images.Tree(ctx, c.Link.Chain)
			if err == nil {
				chains[i].Locations, err = r.Catalog.Starts.Locations(ctx, s.Tree)
			}
			if ends(ctx, err) {
				return err
			}
			if err != nil { // the image may have been removed meanwhile
				if !errors.Is(err, catalog.ErrNotFound) {
					r.fail(fmt.Errorf("tree of chain %s: %w", wire.ShortDigest(c.Link.Chain), err))
				}
				continue
			}
			chains[i].Statement = s
		}
		held[chains[i].Statement.Tree] = true
	}
	return r.hold(ctx, slices.SortedFunc(maps.Keys(held), func(a, b chunk.ID) int { return bytes.Compare(a[:], b[:]) }))
}

// wanted returns the trees that the mirror should have: those of the images, and those that it has
// already and the hub still has.
func (r *run) wanted(ctx context.Context, chains []catalog.ImageChain) (map[chunk.ID]*wantedTree, error) {
	trees := map[chunk.ID]*wantedTree{}
	seen := map[string]bool{}
	for _, c := range chains {
		if c.Statement == nil || seen[c.Link.Chain] {
			continue
		}
		seen[c.Link.Chain] = true
		t := trees[c.Statement.Tree]
		if t == nil {
			t = &wantedTree{id: c.Statement.Tree, locations: c.Locations}
			trees[t.id] = t
		}
		t.chains = append(t.chains, c.Statement)
	}
	for _, id := range r.ids("locations") {
		if trees[id] != nil {
			continue
		}
		locations, err := r.Catalog.Starts.Locations(ctx, id)
		switch {
		case errors.Is(err, catalog.ErrNotFound):
			continue
		case err != nil:
			return nil, err
		}
		trees[id] = &wantedTree{id: id, locations: locations}
	}
	return trees, nil
}

// ids returns the IDs for which the state has a path of a kind: locations, packs.
func (r *run) ids(kind string) (ids []chunk.ID) {
	prefix := path.Dir(wire.KeyPath(r.Domain)) + "/" + kind + "/"
	for file := range r.state.Files {
		if rest, ok := strings.CutPrefix(file, prefix); ok {
			if id, err := chunk.ParseID(rest); err == nil {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// isStale reports whether a tree must be copied.
func (r *run) isStale(t *wantedTree) bool {
	if r.state.Files[wire.LocationsPath(r.Domain, t.id)] != t.locations.String() ||
		r.state.Files[wire.IndexPath(r.Domain, t.id)] == "" {
		return true
	}
	return slices.ContainsFunc(t.chains, func(s *index.Statement) bool {
		b, _ := json.Marshal(s) // a statement always has a JSON form
		sum := sha256.Sum256(append(b, '\n'))
		return r.state.Files[wire.TreePath(r.Domain, s.Chain)] != hex.EncodeToString(sum[:16])
	})
}

// addTrees copies the trees that are new or have changed.
func (r *run) addTrees(ctx context.Context, trees map[chunk.ID]*wantedTree) error {
	var stale []*wantedTree
	for _, t := range trees {
		if r.full || r.isStale(t) {
			stale = append(stale, t)
		}
	}
	progress := r.job.Step("export", "trees", int64(len(stale)))
	for part := range slices.Chunk(stale, batch) {
		plans := make([]*plan, 0, len(part))
		r.listed = map[chunk.ID]map[string]bool{}
		for _, t := range part {
			p, err := r.plan(ctx, t)
			if ends(ctx, err) {
				return err
			}
			if err != nil {
				r.failTree(ctx, t, err)
				continue
			}
			plans = append(plans, p)
			r.note(p.paths(r.Domain)...)
		}
		if err := r.save(ctx); err != nil {
			return err
		}
		for _, p := range plans {
			err := r.copyUnlessWhole(ctx, p)
			if ends(ctx, err) {
				return errors.Join(err, r.save(ctx))
			}
			if err != nil {
				r.failTree(ctx, p.tree, err)
			}
			progress.Add(1)
		}
	}
	if len(stale) > 0 {
		return r.save(ctx)
	}
	return nil
}

// failTree notes that a tree could not be copied, unless the hub does not have it any more, or has
// other locations now.
func (r *run) failTree(ctx context.Context, t *wantedTree, err error) {
	now, lookErr := r.Catalog.Starts.Locations(ctx, t.id)
	if errors.Is(lookErr, catalog.ErrNotFound) || lookErr == nil && now != t.locations {
		r.again.Store(true) // the next look copies what there is then
		return
	}
	r.fail(fmt.Errorf("tree %s: %w", t.id.Short(), err))
}

// note notes paths that may be written from now on.
func (r *run) note(paths ...string) {
	for _, path := range paths {
		if _, known := r.state.Files[path]; !known {
			r.state.Files[path] = ""
		}
	}
}

// writeNames writes what the mirror answers about chains and manifests, for each image of which it
// has all trees.
func (r *run) writeNames(ctx context.Context, chains []catalog.ImageChain) error {
	known := map[string]wire.Link{}
	var digests []string
	for _, image := range byImage(chains) {
		if !slices.ContainsFunc(image, func(c catalog.ImageChain) bool { return !r.has(c) }) {
			for _, c := range image {
				known[c.Link.Chain] = c.Link
			}
			digests = append(digests, image[0].Digest)
		}
	}
	above := files.Above(known)
	answers := map[string][]byte{}
	for chain, link := range known {
		b, err := json.Marshal(files.Answer(link, above))
		if err != nil {
			return err
		}
		answers[wire.ChainPath(r.Domain, chain)] = append(b, '\n')
	}
	for _, digest := range digests {
		m, err := r.Images.Manifest(ctx, digest)
		if errors.Is(err, catalog.ErrNotFound) { // the image was removed meanwhile
			continue
		}
		if err != nil {
			return err
		}
		b, err := json.Marshal(m)
		if err != nil {
			return err
		}
		answers[wire.ManifestPath(r.Domain, digest)] = append(b, '\n')
	}
	before := len(r.state.Files)
	r.note(slices.Collect(maps.Keys(answers))...)
	if len(r.state.Files) > before {
		if err := r.save(ctx); err != nil {
			return err
		}
	}
	for path, b := range answers {
		if err := r.writeSmall(ctx, path, b); err != nil {
			return errors.Join(err, r.save(ctx))
		}
	}
	return nil
}

// has reports whether the mirror has the tree of a chain. It may still have older locations.
func (r *run) has(c catalog.ImageChain) bool {
	return c.Statement != nil && r.state.Files[wire.LocationsPath(r.Domain, c.Statement.Tree)] != "" &&
		r.state.Files[wire.IndexPath(r.Domain, c.Statement.Tree)] != "" &&
		r.state.Files[wire.TreePath(r.Domain, c.Link.Chain)] != ""
}

// byImage splits the chains of all images.
func byImage(chains []catalog.ImageChain) (images [][]catalog.ImageChain) {
	for from := 0; from < len(chains); {
		to := from + 1
		for to < len(chains) && chains[to].Digest == chains[from].Digest {
			to++
		}
		images = append(images, chains[from:to])
		from = to
	}
	return images
}
