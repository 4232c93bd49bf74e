package catalog

import (
	"context"
	"time"

	"lighter/hub/catalog/database"
	"lighter/wire"
)

// NameUse is a name with the times that retention rules are about.
type NameUse struct {
	Name   string
	Ready  bool      // all images of the name are ready
	Pushed time.Time // when the name was last pushed, added or became ready
	Used   time.Time // when a tree of the name was last used or published, or a node that has it last reported
	Bytes  int64     // sum of the sizes of its images' configs and layers, according to the manifests
}

// NameUses returns all names, sorted, or only the given one if it is not empty. now is the
// database's time. Used is a time of trees, so names of the same image have the same Used.
func (c *Catalog) NameUses(ctx context.Context, name string) (uses []NameUse, now time.Time, err error) {
	condition, args := "", []any{wire.StateReady, wire.HolderNode}
	if name != "" {
		condition, args = `WHERE i.name = ? `, append(args, name)
	}
	// Used is the later of two columns: when the layout of a tree was last used, and when a node
	// that holds a tree has last reported.
	uses, err = database.List(ctx, c.db.Read, func(u *NameUse) []any {
		return []any{&u.Name, &u.Ready, database.Stamp(&u.Pushed), later{&u.Used}, later{&u.Used}, &u.Bytes}
	}, `SELECT i.name, MIN(CASE WHEN i.state = ? THEN 1 ELSE 0 END) = 1,
			MAX(CASE WHEN i.pushed > i.updated THEN i.pushed ELSE i.updated END), MAX(COALESCE(l.used, 0)),
			COALESCE(MAX((SELECT MAX(o.seen) FROM held h JOIN holders o ON o.holder = h.holder
				WHERE h.tree = s.tree AND o.kind = ?)), 0), CAST(SUM(i.size) AS BIGINT)
		FROM images i
		LEFT JOIN image_blobs b ON b.image = i.n AND b.position >= 0
			AND b.position = (SELECT MAX(position) FROM image_blobs WHERE image = i.n)
		LEFT JOIN statements s ON s.chain = b.chain
		LEFT JOIN layouts l ON l.tree = s.tree `+condition+`GROUP BY i.name ORDER BY i.name`, args...)
	if err != nil {
		return nil, now, err
	}
	now, err = c.Now(ctx)
	return uses, now, err
}

// later scans a stored time, unless the field has a later one already.
type later struct{ *time.Time }

// Scan implements sql.Scanner.
func (l later) Scan(stored any) error {
	var t time.Time
	if err := database.Stamp(&t).Scan(stored); err != nil {
		return err
	}
	if t.After(*l.Time) {
		*l.Time = t
	}
	return nil
}

// ImageBytes returns the name, digest and size of all images that have not failed. Images that are
// not ready yet are among them.
func (c *Catalog) ImageBytes(ctx context.Context) ([]Image, error) {
	return database.List(ctx, c.db.Read, func(i *Image) []any { return []any{&i.Name, &i.Digest, &i.Size} },
		`SELECT name, digest, size FROM images WHERE state <> ?`, wire.StateFailed)
}
