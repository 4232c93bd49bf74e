package catalog_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"lighter/test/testkit/catalogtest"
)

// A layer that is published while the chunks are compared with the layers does not count as broken,
// even if the catalog had chunks with higher numbers before. A layer whose chunks are missing
// counts.
func TestLayersOfAMoment(t *testing.T) {
	c := openNew(t)
	c.Exec(t, `INSERT INTO numbers (name, last) VALUES ('chunks', 10)
		ON CONFLICT (name) DO UPDATE SET last = excluded.last`)
	catalogtest.Publish(t, c, "one", "a") // with chunk 11
	late := sync.OnceFunc(func() {
		c.Exec(t, `INSERT INTO chunks (n, id, length, unit) SELECT 5, x'05', 1, MAX(n) FROM units`)
		// x'0501' is a run: chunks 5 to 6.
		c.Exec(t, `INSERT INTO layers (diff_id, bytes, entries, chunks) VALUES ('late', 1, 1, x'0501')`)
	})
	c.Observe(func(_ context.Context, statement string, _ []any) {
		if strings.HasSuffix(statement, "FROM layers") {
			late()
		}
	})
	if found, err := c.Checks.Inconsistencies(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("found %v (%v), want no inconsistency", found, err)
	}
	c.Exec(t, `INSERT INTO layers (diff_id, bytes, entries, chunks) VALUES ('broken', 1, 1, x'0401')`)
	found, err := c.Checks.Inconsistencies(t.Context())
	if err != nil || len(found) != 1 || found["layers with chunks that do not exist"] != 1 {
		t.Errorf("found %v (%v), want one layer with chunks that do not exist", found, err)
	}
}
