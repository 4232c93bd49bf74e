package catalog

import (
	"fmt"
	"testing"
	"time"

	"lighter/hub/catalog/database"
)

// Exec changes the database behind the catalog's back.
func (c *Catalog) Exec(t *testing.T, query string) {
	t.Helper()
	if err := c.db.Write.Exec(t.Context(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// SetBehind sets the database's clock back by d, in addition to earlier calls. The clock of this
// process stays.
func (c *Catalog) SetBehind(d time.Duration) {
	behind := *c.db.Write.Dialect
	behind.Clock = fmt.Sprintf("(%s - %d)", behind.Clock, d.Milliseconds())
	c.db.Write.Dialect, c.db.Read.Dialect = &behind, &behind
}

// Times returns the times in a column that are set.
func (c *Catalog) Times(t *testing.T, table, column string) []time.Time {
	t.Helper()
	times, err := database.List(t.Context(), c.db.Read, func(at *time.Time) []any { return []any{database.Stamp(at)} },
		`SELECT `+column+` FROM `+table+` WHERE `+column+` > 0`)
	if err != nil {
		t.Fatal(err)
	}
	return times
}
