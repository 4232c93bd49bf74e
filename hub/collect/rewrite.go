package collect

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/publish"
	"lighter/sleep"
)

const (
	// A pack is rewritten if at least 1/rewriteShare of its bytes are not needed.
	rewriteShare = 4
	// maxRewritten bounds the bytes of rewritten packs that are kept for nodes.
	maxRewritten = 8 << 30

	// newPack is more bytes than a new pack takes in the scratch space and in the bucket together.
	newPack = 64 << 20

	rewrittenAtOnce = 16  // rewritten packs that are removed in one transaction
	locateBatch     = 500 // chunks that are looked up with one query
	mapPages        = 64  // cached pages of an extent map
)

// rewrite copies the needed chunks of packs into new packs, if many other chunks of the packs are
// not needed. The old packs stay until no locations name them. So the copies take additional room
// at first. If there is no room (Config.Room), the other packs are not rewritten.
func (r *run) rewrite(ctx context.Context, marks *catalog.Marks, sparse []sparsePack) error {
	kept, err := r.Catalog.Garbage.RewrittenPacks(ctx)
	if err != nil {
		return err
	}
	room := int64(maxRewritten)
	for _, size := range kept {
		room -= size
	}
	var worth []sparsePack
	total := int64(0)
	for _, p := range sparse {
		if p.isWorth() && room >= p.size {
			room -= p.size
			worth = append(worth, p)
			total += p.size
		} else {
			r.done.DeadBytes += p.dead
		}
	}
	progress := r.job.Step("rewrite", "packs", total)
	for len(worth) > 0 {
		if err := r.Room(newPack); err != nil {
			r.giveUp(worth, err)
			return nil
		}
		var taken int
		err := r.paced(ctx, "rewrite", func() (err error) {
			taken, err = r.rewriteSome(ctx, marks, worth)
			return err
		})
		switch {
		case errors.Is(err, catalog.ErrChanged): // a chunk that was not copied is needed again
		case errors.Is(err, syscall.ENOSPC):
			r.giveUp(worth, err)
			return nil
		case err != nil:
			return err
		}
		for _, p := range worth[:taken] {
			progress.Add(int(p.size))
		}
		worth = worth[taken:]
	}
	return nil
}

// giveUp leaves packs as they are, for lack of room. The next run looks at them again.
func (r *run) giveUp(packs []sparsePack, err error) {
	r.Log.Warn("no room to rewrite packs: nothing more is rewritten", "packs", len(packs), "err", err)
	for _, p := range packs {
		r.done.DeadBytes += p.dead
	}
}

// rewriteSome copies the needed chunks of the first packs into one new pack. It returns how many of
// the packs are done.
func (r *run) rewriteSome(ctx context.Context, marks *catalog.Marks, packs []sparsePack) (taken int, err error) {
	dir, err := r.Publisher.TempDir("rewrite")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file, err := os.Create(filepath.Join(dir, "pack"))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	to, w := catalog.Rewriting{}, pack.NewWriter(file)
	for taken < len(packs) && !w.Full() {
		p, err := r.Catalog.Garbage.PackUse(ctx, marks, packs[taken].n)
		taken++
		if errors.Is(err, catalog.ErrNotFound) || err == nil && p.IsDead() { // its chunks were moved
			continue
		}
		if err != nil {
			return taken, err
		}
		units, err := r.readUnits(ctx, p)
		if err != nil {
			if ctx.Err() != nil || away.Is(err) {
				return taken, err
			}
			r.Log.Error("pack cannot be rewritten", "pack", p.ID.Short(), "err", err)
			continue
		}
		for _, u := range units {
			if _, err := w.Add(u.encoded); err != nil {
				return taken, err
			}
			to.Units, to.Whole = append(to.Units, u.UnitUse), append(to.Whole, u.IsWhole())
			to.To.Units = append(to.To.Units, catalog.Unit{Plain: u.plain, Stored: int64(len(u.encoded))})
		}
		to.From = append(to.From, p)
	}
	if len(to.From) == 0 {
		return taken, nil
	}
	if to.To.ID, to.To.Size, err = w.Close(); err != nil {
		return taken, err
	}
	if err := file.Sync(); err != nil {
		return taken, fmt.Errorf("stage a pack: %w", err)
	}
	staged := []objects.Staged{{Key: objects.PackKey(to.To.ID), Path: file.Name()}}
	err = r.Publisher.Publish(ctx, publish.Objects{Staged: staged}, func(claim catalog.Claim) error {
		to.Claim = claim
		err := r.Catalog.Garbage.Rewrite(ctx, r.lease, marks, &to)
		r.Step("removed rewrite")
		return err
	})
	if err == nil {
		r.done.Rewritten += int64(len(to.From))
	}
	return taken, err
}

// unit is an encoded unit, whose chunks are verified.
type unit struct {
	catalog.UnitUse
	encoded []byte
	plain   int64 // bytes
}

// readUnits reads the needed units of a pack, and verifies them. It pauses after each unit, as
// paced does after each step. Otherwise a pack would keep a processor busy for half a second, and
// nodes would wait.
func (r *run) readUnits(ctx context.Context, p catalog.PackUse) (units []unit, err error) {
	for _, u := range p.Units {
		if len(u.Needed) == 0 {
			continue
		}
		begun := time.Now()
		read, err := r.readUnit(ctx, p.ID, u)
		if err != nil {
			return nil, fmt.Errorf("unit %d: %w", u.Place, err)
		}
		if !sleep.For(ctx, min(restFactor*time.Since(begun), mostRest)) {
			return nil, context.Cause(ctx)
		}
		units = append(units, read)
	}
	return units, nil
}

// readUnit reads a unit. If some of its chunks are not needed, it makes a unit of the needed ones.
func (r *run) readUnit(ctx context.Context, in chunk.ID, u catalog.UnitUse) (unit, error) {
	o, err := r.Objects.OpenUnit(ctx, chunk.Unit{Pack: in, N: u.Place})
	if err != nil {
		return unit{}, err
	}
	defer o.Close()
	encoded, err := io.ReadAll(io.LimitReader(o, pack.MaxStored+1))
	if err != nil {
		return unit{}, err
	}
	decoded, err := pack.DecodeUnit(encoded)
	if err != nil {
		return unit{}, err
	}
	needed := map[chunk.ID]bool{}
	for _, c := range u.Needed {
		needed[c.ID] = true
	}
	var builder pack.UnitBuilder
	plain := int64(0)
	for i := range decoded.Len() {
		ref := decoded.Ref(i)
		if !needed[ref.ID] {
			continue
		}
		b, err := decoded.Lookup(ref.ID)
		if err != nil {
			return unit{}, err
		}
		builder.Add(ref.ID, b)
		plain += int64(len(b))
		delete(needed, ref.ID)
	}
	if len(needed) > 0 {
		return unit{}, fmt.Errorf("%d chunks that the catalog lists in it are missing", len(needed))
	}
	if u.IsWhole() {
		return unit{u, encoded, u.Plain}, nil
	}
	encoded, err = r.Encoders.EncodeBackground(ctx, &builder, nil)
	return unit{u, encoded, plain}, err
}

// renew renews the locations of trees whose chunks were moved to other units.
func (r *run) renew(ctx context.Context) error {
	r.stuck, r.done.Unrenewed = catalog.Stuck{Packs: map[chunk.ID]bool{}}, 0
	moved, err := r.Catalog.Garbage.MovedLayouts(ctx)
	if err != nil || len(moved) == 0 {
		return err
	}
	rewritten, err := r.Catalog.Garbage.RewrittenPacks(ctx)
	if err != nil {
		return err
	}
	for _, l := range moved {
		err := r.paced(ctx, "renew", func() error { return r.renewOne(ctx, l, rewritten) })
		switch {
		case err == nil:
		case ctx.Err() != nil || away.Is(err) || errors.Is(err, catalog.ErrLost):
			return err
		default:
			r.Log.Error("locations cannot be renewed", "tree", l.Tree.Short(), "err", err)
			r.done.Unrenewed++
			if err := r.keepNamed(ctx, l); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepNamed notes the packs that a tree's locations name, if the locations cannot be renewed: these
// packs stay. Locations that cannot be read may name any pack. keepNamed does not note such
// locations as stuck, and so the catalog forgets no pack at all.
func (r *run) keepNamed(ctx context.Context, l catalog.MovedLayout) error {
	locations, err := r.Objects.ReadLocations(ctx, l.Locations, l.Tree, -1)
	if err == nil {
		err = locations.Each(func(_ int64, u chunk.Unit) error {
			r.stuck.Packs[u.Pack] = true
			return nil
		})
	}
	switch {
	case ctx.Err() != nil || away.Is(err):
		return err
	case err == nil:
		r.stuck.Layouts = append(r.stuck.Layouts, l)
	}
	return nil
}

// renewOne renews the locations of one tree.
func (r *run) renewOne(ctx context.Context, l catalog.MovedLayout, rewritten map[chunk.ID]int64) (err error) {
	count, err := r.Catalog.Collections(ctx)
	if err != nil {
		return err
	}
	settle := func(claim catalog.Claim, locations chunk.ID, size int64) error {
		return r.Catalog.Garbage.SettleLocations(ctx, claim, r.lease, l, count.Moves, locations, size)
	}
	before, err := r.Objects.ReadLocations(ctx, l.Locations, l.Tree, -1)
	if errors.Is(err, objects.ErrNotFound) && !r.hasLocations(ctx, l) { // the tree has newer locations
		return nil
	}
	if err != nil {
		return err
	}
	isOld := map[chunk.ID]bool{} // packs whose chunks are looked up
	startups := before.Startups()
	if err := before.Each(func(_ int64, u chunk.Unit) error {
		_, old := rewritten[u.Pack]
		isStartup := slices.ContainsFunc(startups, func(s index.Startup) bool { return s.Pack == u.Pack })
		if old || l.Moved == catalog.AnyPack && !u.IsZero() && !isStartup {
			isOld[u.Pack] = true
		}
		return nil
	}); err != nil {
		return err
	}
	if len(isOld) == 0 {
		return settle(catalog.Claim{}, l.Locations, 0)
	}
	dir, err := r.Publisher.TempDir("renew")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	plain, err := r.relocate(ctx, dir, l.Tree, before, isOld)
	if err != nil {
		return err
	}
	id := chunk.Sum(plain)
	if id == l.Locations {
		return settle(catalog.Claim{}, l.Locations, 0)
	}
	path := filepath.Join(dir, "locations")
	size, err := objects.CompressFile(path, plain)
	if err != nil {
		return err
	}
	all := publish.Objects{Staged: []objects.Staged{{Key: objects.LocationsKey(id), Path: path}},
		Replaced: []string{objects.LocationsKey(l.Locations)}}
	return r.Publisher.Publish(ctx, all, func(claim catalog.Claim) error { return settle(claim, id, size) })
}

// hasLocations reports whether a tree still has the locations l, or may have them.
func (r *run) hasLocations(ctx context.Context, l catalog.MovedLayout) bool {
	now, err := r.Catalog.Starts.Locations(ctx, l.Tree)
	return now == l.Locations || err != nil && !errors.Is(err, catalog.ErrNotFound)
}

// relocate returns a tree's locations before, with the current units of all chunks that they have
// in the packs isOld. It writes the tree's extent map to dir.
func (r *run) relocate(
	ctx context.Context, dir string, tree chunk.ID, before *index.Locations, isOld map[chunk.ID]bool,
) ([]byte, error) {
	extents, file, err := r.extents(ctx, dir, tree)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	after := index.NewLocations(tree)
	var units []chunk.Unit
	var ids []chunk.ID // of the chunks of units; zero: the unit stays
	flush := func() error {
		now, err := r.Catalog.Units(ctx, slices.DeleteFunc(slices.Clone(ids), chunk.ID.IsZero))
		if err != nil {
			return err
		}
		for i, u := range units {
			if !ids[i].IsZero() {
				u = now[ids[i]]
			}
			after.Add(u)
		}
		units, ids = units[:0], ids[:0]
		return nil
	}
	err = before.Each(func(i int64, u chunk.Unit) error {
		var id chunk.ID
		if isOld[u.Pack] {
			e, err := extents.Extent(i)
			if err != nil {
				return err
			}
			id = e.ID
		}
		units, ids = append(units, u), append(ids, id)
		if len(units) < locateBatch {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	if err != nil {
		return nil, err
	}
	for _, s := range before.Startups() {
		after.Startup(s)
	}
	return after.Encode(), nil
}

// extents reads a tree's extent map into a file of dir, which the caller closes.
func (r *run) extents(ctx context.Context, dir string, tree chunk.ID) (_ *index.Map, file *os.File, err error) {
	plain, err := r.Objects.OpenPlain(ctx, objects.IndexKey(tree))
	if err != nil {
		return nil, nil, err
	}
	defer plain.Close()
	if file, err = os.Create(filepath.Join(dir, "map")); err != nil {
		return nil, nil, err
	}
	b := bufio.NewWriterSize(file, 64<<10)
	_, err = index.Receive(plain, tree, b, io.Discard)
	var m *index.Map
	if err = errors.Join(err, b.Flush()); err == nil {
		m, err = index.OpenMap(file, tree, index.NewPages(mapPages))
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return m, file, nil
}

// dropRewritten deletes rewritten packs that no locations have named for long enough.
func (r *run) dropRewritten(ctx context.Context) error {
	if err := r.Catalog.Garbage.RetireRewritten(ctx, r.lease, &r.stuck); err != nil {
		return err
	}
	for {
		packs, err := r.Catalog.Garbage.OldRewritten(ctx, r.Keep, rewrittenAtOnce)
		if err != nil || len(packs) == 0 {
			return err
		}
		var keys []string
		for _, p := range packs {
			keys = append(keys, objects.PackKey(p.ID))
		}
		if err := r.remove(ctx, "rewritten", keys, func(claim catalog.Claim) error {
			bytes, err := r.Catalog.Garbage.DropRewritten(ctx, claim, r.lease, r.Keep, packs)
			r.done.Bytes += bytes
			return err
		}); err != nil {
			return err
		}
	}
}
