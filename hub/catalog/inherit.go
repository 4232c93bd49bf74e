package catalog

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// publishLayout gives a new tree its locations. An image's tree also becomes due for a layout, and
// inherits the recordings of the previous image.
func publishLayout(ctx context.Context, tx *sql.Tx, p *Publication) error {
	t := p.Tree
	now, due := time.Now().UnixMilli(), int64(0)
	if p.Image != 0 {
		due = now
	}
	if _, err := tx.ExecContext(ctx, `
		INSERT INTO layouts (tree, locations, wire, startup, due, changes, tries, unserved, used, lost)
			VALUES (?, ?, ?, ?, ?, 1, 0, 0, ?, 0)
		ON CONFLICT (tree) DO UPDATE SET due = CASE WHEN excluded.due > 0 THEN excluded.due ELSE layouts.due END,
			changes = layouts.changes + 1, tries = 0, unserved = 0, used = excluded.used,
			lost = CASE WHEN excluded.due > 0 THEN 0 ELSE layouts.lost END`,
		t.ID[:], t.Locations[:], t.LocationsWire, []byte{}, due, now); err != nil {
		return err
	}
	if p.Image == 0 || p.Repository == "" {
		return nil
	}
	if err := inherit(ctx, tx, p); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO formers (repository, platform, tree) VALUES (?, ?, ?)
		ON CONFLICT (repository, platform) DO UPDATE SET tree = excluded.tree`, p.Repository, p.Platform, t.ID[:])
	return err
}

// inherit copies the recordings of the repository's previous image, unless the tree has recordings.
func inherit(ctx context.Context, tx *sql.Tx, p *Publication) error {
	var former []byte
	err := tx.QueryRowContext(ctx, `SELECT tree FROM formers WHERE repository = ? AND platform = ?`, p.Repository,
		p.Platform).Scan(&former)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO recordings (tree, body) SELECT ?, body FROM recordings WHERE tree = ?
		ON CONFLICT (tree) DO NOTHING`, p.Tree.ID[:], former)
	return err
}
