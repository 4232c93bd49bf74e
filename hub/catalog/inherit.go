package catalog

import (
	"context"
)

// publishLayout gives a new tree its locations. An image's tree also becomes due for a layout, and
// inherits the recordings of the previous image.
func publishLayout(ctx context.Context, tx session, p *Publication) error {
	t := p.Tree
	due := int64(0)
	if p.Image != 0 {
		due = now()
	}
	if err := exec(ctx, tx, `
		INSERT INTO layouts (tree, locations, wire, startup, due, changes, tries, unserved, used, lost)
			VALUES (?, ?, ?, ?, ?, 1, 0, 0, ?, 0)
		ON CONFLICT (tree) DO UPDATE SET due = CASE WHEN excluded.due > 0 THEN excluded.due ELSE layouts.due END,
			changes = layouts.changes + 1, tries = 0, unserved = 0, used = excluded.used,
			lost = CASE WHEN excluded.due > 0 THEN 0 ELSE layouts.lost END`,
		t.ID[:], t.Locations[:], t.LocationsWire, []byte{}, due, now()); err != nil {
		return err
	}
	if p.Image == 0 || p.Repository == "" {
		return nil
	}
	// Recordings of its own are better than those of the previous image.
	if err := exec(ctx, tx, `
		INSERT INTO recordings (tree, body) SELECT ?, body FROM recordings
			WHERE tree = (SELECT tree FROM formers WHERE repository = ? AND platform = ?)
		ON CONFLICT (tree) DO NOTHING`, t.ID[:], p.Repository, p.Platform); err != nil {
		return err
	}
	return exec(ctx, tx, `INSERT INTO formers (repository, platform, tree) VALUES (?, ?, ?)
		ON CONFLICT (repository, platform) DO UPDATE SET tree = excluded.tree`, p.Repository, p.Platform, t.ID[:])
}
