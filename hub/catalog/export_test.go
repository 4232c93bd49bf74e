package catalog

import (
	"fmt"
	"testing"
	"time"
)

// Exec changes the database behind the catalog's back.
func (c *Catalog) Exec(t *testing.T, query string) {
	t.Helper()
	if _, err := c.write.exec(t.Context(), query); err != nil {
		t.Fatal(query, err)
	}
}

// SetBehind sets the database's clock back, compared with that of this process.
func (c *Catalog) SetBehind(d time.Duration) {
	behind := *c.write.dialect
	behind.clock = fmt.Sprintf("(%s - %d)", behind.clock, d.Milliseconds())
	c.write.dialect, c.read.dialect = &behind, &behind
}

// Times returns the times in a column that are set.
func (c *Catalog) Times(t *testing.T, table, column string) []time.Time {
	t.Helper()
	times, err := list(t.Context(), c.read, func(at *time.Time) []any { return []any{stamp{at}} },
		`SELECT `+column+` FROM `+table+` WHERE `+column+` > 0`)
	if err != nil {
		t.Fatal(err)
	}
	return times
}
