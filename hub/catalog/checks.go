package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog/database"
	"lighter/hub/catalog/numberset"
)

// Check is the progress of a check of the hub's stores: of a sweep, say. A check that was
// interrupted, by a restart for example, goes on after Place.
type Check struct {
	Place  string    // key of the last object that was checked; empty: none
	Begun  time.Time // when the current check began or, if none is running, the last one
	Ended  time.Time // when a check was last complete; zero: never
	Report []byte    // what the worker has stored last
	// Sums over all checks of the kind:
	Objects int64 // that were checked
	Bytes   int64 // that were read
	Errors  int64 // problems that were found
}

// Checks has the progress of checks of the hub's stores, and the objects and rows that checks
// compare. It is safe for concurrent use.
type Checks struct{ db *database.DB }

// Get returns the progress of the check that jobs of a kind run. It is the zero Check if none has
// run.
func (c *Checks) Get(ctx context.Context, kind string) (Check, error) {
	all, err := database.List(ctx, c.db.Read, func(k *Check) []any {
		return []any{&k.Place, database.Stamp(&k.Begun), database.Stamp(&k.Ended), &k.Objects, &k.Bytes, &k.Errors,
			&k.Report}
	}, `SELECT place, begun, ended, objects, bytes, errors, report FROM checks WHERE kind = ?`, kind)
	if err != nil || len(all) == 0 {
		return Check{}, err
	}
	return all[0], nil
}

// Set stores the progress of the check that the owner of a lease runs: its Place, Report and sums.
// The error is ErrLost if the lease was lost.
func (c *Checks) Set(ctx context.Context, l Lease, kind string, k Check) error {
	return c.set(ctx, l, kind, k, `ended`)
}

// Complete is Set for a check that has checked everything. The next check begins with the first
// object.
func (c *Checks) Complete(ctx context.Context, l Lease, kind string, k Check) error {
	k.Place = ""
	return c.set(ctx, l, kind, k, c.db.Write.Clock)
}

func (c *Checks) set(ctx context.Context, l Lease, kind string, k Check, ended string) error {
	return c.db.Update(ctx, "store the progress of check "+kind, func(tx database.Session) error {
		if err := hold(ctx, tx, l); err != nil {
			return err
		}
		if err := tx.Exec(ctx, `INSERT INTO checks (kind, place, begun, ended, ran, objects, bytes, errors, report)
			VALUES (?, '', `+tx.Clock+`, 0, 0, 0, 0, 0, ?) ON CONFLICT (kind) DO NOTHING`, kind, []byte{}); err != nil {
			return err
		}
		return tx.Exec(ctx, `UPDATE checks SET begun = CASE WHEN place = '' THEN `+tx.Clock+` ELSE begun END,
			place = ?, ended = `+ended+`, objects = ?, bytes = ?, errors = ?, report = ? WHERE kind = ?`,
			k.Place, k.Objects, k.Bytes, k.Errors, append([]byte{}, k.Report...), kind)
	})
}

// ObjectKind is a kind of objects that the catalog names.
type ObjectKind int

// The kinds of objects.
const (
	Indexes   ObjectKind = iota // by tree
	Records                     // of layers, by diffID
	Locations                   // by digest
	Packs                       // startup packs and rewritten packs, too
)

// Object is an object that the catalog names.
type Object struct {
	ID   chunk.ID
	Size int64 // in bytes; -1: not known
}

// Objects returns at most limit objects of a kind in the order of their IDs, from the first ID
// after the given one.
func (c *Checks) Objects(ctx context.Context, kind ObjectKind, after chunk.ID, limit int) ([]Object, error) {
	fields := func(o *Object) []any { return []any{&o.ID, &o.Size} }
	switch kind {
	case Indexes:
		return database.List(ctx, c.db.Read, fields,
			`SELECT tree, index_wire FROM trees WHERE tree > ? ORDER BY tree LIMIT ?`,
			after[:], limit)
	case Locations:
		return database.List(ctx, c.db.Read, fields, `SELECT locations, MAX(wire) FROM layouts WHERE locations > ?
			GROUP BY locations ORDER BY locations LIMIT ?`, after[:], limit)
	case Packs:
		var all []Object
		for _, table := range []string{"packs", "startup_packs", "rewritten_packs"} {
			some, err := database.List(ctx, c.db.Read, fields, `SELECT id, size FROM `+table+` WHERE id > ?
				ORDER BY id LIMIT ?`, after[:], limit)
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
		slices.SortFunc(all, func(a, b Object) int { return bytes.Compare(a.ID[:], b.ID[:]) })
		all = slices.CompactFunc(all, func(a, b Object) bool { return a.ID == b.ID })
		return all[:min(len(all), limit)], nil
	}
	diffIDs, err := database.List(ctx, c.db.Read, database.Value[string], `SELECT diff_id FROM layers WHERE diff_id > ?
		ORDER BY diff_id LIMIT ?`, "sha256:"+after.String(), limit)
	if err != nil {
		return nil, err
	}
	all := make([]Object, len(diffIDs))
	for i, diffID := range diffIDs {
		if all[i].ID, err = chunk.ParseID(strings.TrimPrefix(diffID, "sha256:")); err != nil {
			return nil, fmt.Errorf("layer %s: %w", diffID, err)
		}
		all[i].Size = -1
	}
	return all, nil
}

// ObjectSize returns the size of an object in bytes, -1 if it is not known. The error is
// ErrNotFound if the catalog does not name the object.
func (c *Checks) ObjectSize(ctx context.Context, kind ObjectKind, id chunk.ID) (int64, error) {
	switch kind {
	case Indexes:
		return database.Get(ctx, c.db.Read, database.Value[int64], `SELECT index_wire FROM trees WHERE tree = ?`, id[:])
	case Locations:
		return database.Get(ctx, c.db.Read, database.Value[int64],
			`SELECT wire FROM layouts WHERE locations = ? LIMIT 1`, id[:])
	case Packs:
		size, err := database.Get(ctx, c.db.Read, database.Value[int64], `SELECT size FROM packs WHERE id = ?`, id[:])
		if errors.Is(err, ErrNotFound) {
			size, err = database.Get(ctx, c.db.Read, database.Value[int64],
				`SELECT size FROM startup_packs WHERE id = ?`, id[:])
		}
		if errors.Is(err, ErrNotFound) {
			size, err = database.Get(ctx, c.db.Read, database.Value[int64],
				`SELECT size FROM rewritten_packs WHERE id = ?`, id[:])
		}
		return size, err
	}
	return database.Get(ctx, c.db.Read, database.Value[int64],
		`SELECT -1 FROM layers WHERE diff_id = ?`, "sha256:"+id.String())
}

// ObjectBytes returns the bytes of all objects whose sizes are known, and the number of all
// objects.
func (c *Checks) ObjectBytes(ctx context.Context) (n, size int64, err error) {
	for _, table := range [][2]string{{"trees", "index_wire"}, {"layouts", "wire"}, {"packs", "size"},
		{"startup_packs", "size"}, {"rewritten_packs", "size"}, {"layers", "0"}} {
		sum, err := database.Get(ctx, c.db.Read, func(s *[2]int64) []any { return []any{&s[0], &s[1]} },
			`SELECT COUNT(*), COALESCE(SUM(`+table[1]+`), 0) FROM `+table[0])
		if err != nil {
			return 0, 0, err
		}
		n, size = n+sum[0], size+sum[1]
	}
	return n, size, nil
}

// Inconsistencies counts, by what is wrong, the rows that refer to rows that do not exist, and the
// damages of the database's files. The map is empty if nothing is wrong.
func (c *Checks) Inconsistencies(ctx context.Context) (map[string]int64, error) {
	found := map[string]int64{}
	for what, query := range inconsistencies {
		n, err := database.Get(ctx, c.db.Read, database.Value[int64], query)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			found[what] = n
		}
	}
	broken, err := c.brokenLayers(ctx)
	if err != nil {
		return nil, err
	}
	maps.Copy(found, broken)
	if c.db.Read.Integrity == "" {
		return found, nil
	}
	lines, err := database.List(ctx, c.db.Read, database.Value[string], c.db.Read.Integrity)
	for _, line := range lines {
		if line != "ok" {
			found["the database is damaged: "+line]++
		}
	}
	return found, err
}

// inconsistencies are queries of the number of rows that refer to rows that do not exist, by what
// is wrong.
var inconsistencies = map[string]string{
	"chunks without a unit": `SELECT COUNT(*) FROM chunks c WHERE NOT EXISTS
		(SELECT 1 FROM units u WHERE u.n = c.unit)`,
	"units without a pack": `SELECT COUNT(*) FROM units u WHERE NOT EXISTS
		(SELECT 1 FROM packs p WHERE p.n = u.pack)`,
	"ready images without a statement": `SELECT COUNT(*) FROM images i WHERE i.state = 'ready' AND NOT EXISTS (
		SELECT 1 FROM image_blobs b JOIN statements s ON s.chain = b.chain WHERE b.image = i.n AND b.position =
			(SELECT MAX(position) FROM image_blobs WHERE image = i.n))`,
	"trees without a layout": `SELECT COUNT(*) FROM trees t WHERE NOT EXISTS
		(SELECT 1 FROM layouts l WHERE l.tree = t.tree)`,
	"statements without a tree": `SELECT COUNT(*) FROM statements s WHERE NOT EXISTS
		(SELECT 1 FROM trees t WHERE t.tree = s.tree)`,
	"chains without a layer": `SELECT COUNT(*) FROM chains c WHERE NOT EXISTS
		(SELECT 1 FROM layers l WHERE l.diff_id = c.diff_id)`,
	"chains without their parent": `SELECT COUNT(*) FROM chains c WHERE c.parent <> '' AND NOT EXISTS
		(SELECT 1 FROM chains p WHERE p.chain = c.parent)`,
	"layers of ready images without a chain": `SELECT COUNT(*) FROM image_blobs b JOIN images i ON i.n = b.image
		WHERE i.state = 'ready' AND b.position >= 0 AND NOT EXISTS (SELECT 1 FROM chains c WHERE c.chain = b.chain)`,
}

// brokenLayers counts the layers that name chunks that do not exist, and those whose set of chunks
// cannot be decoded, by what is wrong.
func (c *Checks) brokenLayers(ctx context.Context) (map[string]int64, error) {
	last, err := database.Get(ctx, c.db.Read, database.Value[int64], `SELECT COALESCE(MAX(n), 0) FROM chunks`)
	if err != nil {
		return nil, err
	}
	var exist numberset.Bits
	for n, err := range database.Rows(ctx, c.db.Read, database.Value[int64], `SELECT n FROM chunks`) {
		if err != nil {
			return nil, err
		}
		exist.Add(n, n+1)
	}
	found := map[string]int64{}
	var broken []string
	for l, err := range layersChunks(ctx, c.db.Read) {
		if err != nil {
			return nil, err
		}
		missing := false
		if err := numberset.Decode(l.chunks, func(first, end int64) error {
			for n := first; n < min(end, last+1); n++ { // later chunks may have been added after the chunks were read
				missing = missing || !exist.Has(n)
			}
			return nil
		}); err != nil {
			found["layers whose set of chunks is damaged"]++
		}
		if missing {
			broken = append(broken, l.diffID)
		}
	}
	for _, diffID := range broken { // a layer may have been published since the chunks were read
		still, err := c.isBroken(ctx, diffID)
		if err != nil {
			return nil, err
		}
		if still {
			found["layers with chunks that do not exist"]++
		}
	}
	return found, nil
}

// isBroken reports whether a layer still exists and names chunks that do not exist. Chunks are
// removed after their layers. So a layer that still exists after its chunks were missing is broken.
func (c *Checks) isBroken(ctx context.Context, diffID string) (bool, error) {
	chunksOf := func() ([][]byte, error) {
		return database.List(ctx, c.db.Read, database.Value[[]byte],
			`SELECT chunks FROM layers WHERE diff_id = ?`, diffID)
	}
	runs, err := chunksOf()
	if err != nil || len(runs) == 0 {
		return false, err
	}
	missing := int64(0)
	if err := numberset.Decode(runs[0], func(first, end int64) error {
		n, err := database.Get(ctx, c.db.Read, database.Value[int64],
			`SELECT COUNT(*) FROM chunks WHERE n >= ? AND n < ?`, first, end)
		missing += end - first - n
		return err
	}); err != nil || missing == 0 {
		if errors.Is(err, numberset.ErrDamaged) { // brokenLayers has counted it
			err = nil
		}
		return false, err
	}
	runs, err = chunksOf()
	return len(runs) > 0, err
}
