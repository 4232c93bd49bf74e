package catalog

import "testing"

// Exec changes the database behind the catalog's back.
func (c *Catalog) Exec(t *testing.T, query string) {
	t.Helper()
	if _, err := c.write.exec(t.Context(), query); err != nil {
		t.Fatal(query, err)
	}
}
