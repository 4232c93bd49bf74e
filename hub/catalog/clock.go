package catalog

import (
	"context"

	"lighter/hub/catalog/database"
)

// correctTimes sets back times that are in the future, because the clock of the database's machine
// was wrong, or was set back. Accepted jobs would wait for these times, and the names that were
// pushed before would count as newer than those that are pushed from now on. Other times in the
// future only delay what is deleted.
func (c *Catalog) correctTimes(ctx context.Context) error {
	err := c.db.Update(ctx, "correct the times of jobs", func(tx database.Session) error {
		return tx.Exec(ctx, `UPDATE jobs SET run_at = `+tx.Clock+`, updated = `+tx.Clock+`
			WHERE `+openJob+` AND updated > `+tx.Clock)
	})
	if err != nil {
		return err
	}
	return c.db.Update(ctx, "correct the times of images", func(tx database.Session) error {
		images, err := database.List(ctx, tx, database.Value[int64], `SELECT n FROM images
			WHERE pushed > `+tx.Clock+` OR updated > `+tx.Clock+`
			ORDER BY CASE WHEN pushed > updated THEN pushed ELSE updated END`)
		for i := 0; i < len(images) && err == nil; i++ { // their order stays
			newer := len(images) - i
			err = tx.Exec(ctx, `UPDATE images SET pushed = `+tx.Clock+` - ?, updated = `+tx.Clock+` - ? WHERE n = ?`,
				newer, newer, images[i])
		}
		return err
	})
}
