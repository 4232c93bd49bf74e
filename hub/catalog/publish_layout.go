package catalog

import (
	"context"
	"errors"

	"lighter/hub/catalog/database"
	"lighter/wire"
)

// publishLayout gives a new tree its locations. It queues the job that makes the tree's layout if
// the tree gets its first image, or inherits the recordings of the previous image of its
// repository.
func publishLayout(ctx context.Context, tx database.Session, p *Publication) error {
	t := p.Tree
	if err := lockLayout(ctx, tx, t.ID); err != nil {
		return err
	}
	first, err := database.Get(ctx, tx, database.Value[bool], `SELECT NOT EXISTS (SELECT 1 FROM statements s
		JOIN image_blobs b ON b.chain = s.chain JOIN images i ON i.n = b.image
		WHERE s.tree = ? AND i.state = '`+wire.StateReady+`' AND i.n <> ?)`, t.ID[:], p.Image)
	if err != nil {
		return err
	}
	if err := tx.Exec(ctx, `
		INSERT INTO layouts (tree, locations, wire, startup, due, changes, tries, unserved, used, lost)
			VALUES (?, ?, ?, ?, 0, 0, 0, 0, `+tx.Clock+`, 0)
		ON CONFLICT (tree) DO UPDATE SET unserved = 0, used = excluded.used`,
		t.ID[:], t.Locations[:], t.LocationsWire, []byte{}); err != nil {
		return err
	}
	if p.Image == 0 {
		return nil
	}
	inherited, err := inherit(ctx, tx, p)
	if err != nil || !first && !inherited {
		return err
	}
	if err := tx.Exec(ctx, `UPDATE layouts SET lost = 0 WHERE tree = ?`, t.ID[:]); err != nil {
		return err
	}
	return requestLayout(ctx, tx, t.ID, 0)
}

// inherit gives a tree the recordings of another tree: that of the previous image of its repository
// and platform. A tree that has recordings keeps them, because they are better. The next image
// inherits from this tree. inherit reports whether the tree has got recordings.
func inherit(ctx context.Context, tx database.Session, p *Publication) (bool, error) {
	if p.Repository == "" {
		return false, nil
	}
	t := p.Tree
	err := tx.Change(ctx, errKnown, `
		INSERT INTO recordings (tree, body) SELECT ?, body FROM recordings
			WHERE tree = (SELECT tree FROM formers WHERE repository = ? AND platform = ?)
		ON CONFLICT (tree) DO NOTHING`, t.ID[:], p.Repository, p.Platform)
	inherited := err == nil
	if err != nil && !errors.Is(err, errKnown) {
		return false, err
	}
	return inherited, tx.Exec(ctx, `INSERT INTO formers (repository, platform, tree) VALUES (?, ?, ?)
		ON CONFLICT (repository, platform) DO UPDATE SET tree = excluded.tree`, p.Repository, p.Platform, t.ID[:])
}
