package catalogtest

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"lighter/hub/catalog"
)

// Large adds many rows to a catalog's database without the work that a hub would do for them. The
// rows are copies of existing rows, with different keys. A hub may run meanwhile.
type Large struct {
	db       *sql.DB
	postgres bool
}

// OpenLarge opens the database of a catalog's source. The caller closes it.
func OpenLarge(source string) (*Large, error) {
	l := &Large{postgres: catalog.IsPostgres(source)}
	driver := "sqlite"
	if l.postgres {
		// PostgreSQL reads a small table as a whole because that costs less. With these settings,
		// it does so only if there is no other way.
		u, err := url.Parse(source)
		if err != nil {
			return nil, err
		}
		q := u.Query()
		for _, method := range []string{"enable_seqscan", "enable_mergejoin", "enable_hashjoin"} {
			q.Set(method, "off")
		}
		u.RawQuery = q.Encode()
		driver, source = "pgx", u.String()
	} else {
		source = "file:" + source + "?_pragma=busy_timeout(60000)"
	}
	var err error
	l.db, err = sql.Open(driver, source)
	return l, err
}

// Close closes the database.
func (l *Large) Close() error { return l.db.Close() }

// Fill adds copies of one ready image and of one ended job. images and jobs are the numbers of
// copies. The catalog must have fewer than 1,000 images before. The image's copies are named
// fill/1:1, fill/2:1 and so on. The copies share the image's objects, and have the digests, chains
// and trees that CopyOf and CopyID return.
func (l *Large) Fill(ctx context.Context, images, jobs int) error {
	image := `(SELECT n FROM images WHERE name NOT LIKE 'fill/%' AND state = 'ready' ORDER BY n LIMIT 1)`
	chains := `chain IN (SELECT chain FROM image_blobs WHERE chain <> '' AND image = ` + image + `)`
	trees := `tree IN (SELECT tree FROM statements WHERE ` + chains + `)`
	text := func(column string) string { return column + ` || '-' || i` }
	number := func(table string) string { return `n + i * (SELECT MAX(n) FROM ` + table + `)` }
	chain := `CASE WHEN chain = '' THEN '' ELSE chain || '-' || i END`
	for _, c := range []struct {
		table, where string
		count        int
		keys         map[string]string
	}{
		{"layers", `diff_id IN (SELECT diff_id FROM chains WHERE ` + chains + `)`, images,
			map[string]string{"diff_id": text("diff_id")}},
		{"blobs", `diff_id IN (SELECT diff_id FROM chains WHERE ` + chains + `)`, images,
			map[string]string{"digest": text("digest"), "diff_id": text("diff_id")}},
		{"chains", chains, images, map[string]string{"chain": text("chain"), "diff_id": text("diff_id"),
			"parent": `CASE WHEN parent = '' THEN '' ELSE parent || '-' || i END`}},
		{"trees", trees, images, map[string]string{"tree": l.id()}},
		{"layouts", trees, images, map[string]string{"tree": l.id(), "due": "0"}},
		{"startups", trees, images, map[string]string{"tree": l.id()}},
		{"statements", chains, images, map[string]string{"chain": text("chain"), "tree": l.id()}},
		{"images", "n = " + image, images, map[string]string{"n": "n + i * 1000", "name": `'fill/' || i || ':1'`,
			"digest": text("digest"), "root": text("root")}},
		{"image_blobs", "image = " + image, images, map[string]string{"image": "image + i * 1000", "chain": chain,
			"digest": text("digest")}},
		{"packs", "n = (SELECT MIN(n) FROM packs)", images, map[string]string{"n": number("packs"), "id": l.id()}},
		{"units", "n = (SELECT MIN(n) FROM units)", images, map[string]string{"n": number("units")}},
		{"chunks", "n = (SELECT MIN(n) FROM chunks)", images, map[string]string{"n": number("chunks"), "id": l.id()}},
		{"jobs", "n = (SELECT MIN(n) FROM jobs WHERE state = 'done')", jobs,
			map[string]string{"n": number("jobs"), "key": text("key")}},
	} {
		if err := l.multiply(ctx, c.table, c.where, c.count, c.keys); err != nil {
			return fmt.Errorf("fill table %s: %w", c.table, err)
		}
	}
	for _, table := range []string{"images", "packs", "units", "chunks", "jobs"} {
		if _, err := l.db.ExecContext(ctx, `UPDATE numbers SET last = (SELECT MAX(n) FROM `+table+`) WHERE name = '`+
			table+`'`); err != nil {
			return err
		}
	}
	_, err := l.db.ExecContext(ctx, "ANALYZE")
	return err
}

// id returns the SQL of the ID of copy i.
func (l *Large) id() string {
	if l.postgres {
		return `CAST(lpad(CAST(i AS TEXT), 32, '0') AS bytea)`
	}
	return `CAST(printf('%032d', i) AS BLOB)`
}

// CopyID returns the ID of the tree of copy i, in hex.
func CopyID(i int) string { return fmt.Sprintf("%x", fmt.Sprintf("%032d", i)) }

// CopyOf returns the digest or chain of copy i.
func CopyOf(original string, i int) string { return fmt.Sprintf("%s-%d", original, i) }

// multiply makes count copies of the rows that match where. keys has an SQL expression for each
// column that differs, in which i is the number of the copy, from 1.
func (l *Large) multiply(ctx context.Context, table, where string, count int, keys map[string]string) error {
	rows, err := l.db.QueryContext(ctx, `SELECT * FROM `+table+` LIMIT 0`)
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	if err := rows.Close(); err != nil {
		return err
	}
	values := slices.Clone(columns)
	for n, column := range columns {
		if key, ok := keys[column]; ok {
			values[n] = key
		}
	}
	done, err := l.db.ExecContext(ctx, fmt.Sprintf(`INSERT INTO %s (%s)
		WITH RECURSIVE copies (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM copies WHERE i < %d)
		SELECT %s FROM %s CROSS JOIN copies WHERE %s`,
		table, strings.Join(columns, ", "), count, strings.Join(values, ", "), table, where))
	if err != nil {
		return err
	}
	if n, err := done.RowsAffected(); err == nil && n == 0 && table != "startups" {
		return fmt.Errorf("there is no row to copy: %s", where)
	}
	return nil
}

// Execute runs a statement.
func (l *Large) Execute(ctx context.Context, statement string) error {
	_, err := l.db.ExecContext(ctx, statement)
	return err
}
