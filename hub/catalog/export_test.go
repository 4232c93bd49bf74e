package catalog

import (
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

// SetSizesWait sets how long Sizes waits.
func (c *Catalog) SetSizesWait(d time.Duration) { c.sizes.wait = d }
