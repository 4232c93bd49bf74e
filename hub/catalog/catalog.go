// Package catalog promises one consistent answer to what the hub knows: which
// images there are and in which state, which chains and trees stand for them,
// and in which unit each chunk lies. What it says exists is stored and was
// verified; an image appears with everything that belongs to it, or not at all.
//
// All SQL of the hub is here. It keeps to what SQLite and PostgreSQL share;
// schema.sql and startup.sql draw the tables.
//
// It refuses to hold contents, to touch objects or the network, and to decide
// what is to be done next. Hazard: one process at a time may write.
package catalog

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"strings"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// ErrNotFound says that the catalog does not know what was asked for.
var ErrNotFound = errors.New("not found")

//go:embed schema.sql
var schema string

//go:embed startup.sql
var startupSchema string

// schemaVersion is what this version makes and reads. A catalog of firstVersion,
// which knows nothing of how images start, becomes one, and one of secondVersion,
// which does not know when trees were used, nor who sent a trace.
const (
	schemaVersion = "3"
	secondVersion = "2"
	firstVersion  = "1"
)

// readers bounds the connections that read; there is one that writes.
const readers = 4

// Catalog is an open catalog. It is safe for concurrent use.
type Catalog struct {
	write *sql.DB // one connection: SQLite has one writer, and waiting for it here is fair
	read  *sql.DB

	changes changes
	sizes   counting
}

// Open opens the catalog in the file at path, and makes it if there is none.
func Open(ctx context.Context, path string) (*Catalog, error) {
	write, err := open(path, "&_txlock=immediate", 1)
	if err != nil {
		return nil, err
	}
	read, err := open(path, "&_pragma=query_only(1)", readers)
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	c := &Catalog{write: write, read: read, changes: changes{wake: make(chan struct{}, 1)}, sizes: newCounting()}
	if err := c.migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open the catalog %s: %w", path, err), c.Close())
	}
	return c, nil
}

func open(path, options string, connections int) (*sql.DB, error) {
	dsn := "file:" + (&url.URL{Path: path}).EscapedPath() +
		"?_pragma=journal_mode(wal)&_pragma=synchronous(full)&_pragma=busy_timeout(10000)&_pragma=foreign_keys(1)" +
		"&_pragma=cache_size(-32000)" + options
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, fmt.Errorf("open the catalog %s: %w", path, err)
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
}

// Close closes the catalog.
func (c *Catalog) Close() error { return errors.Join(c.read.Close(), c.write.Close()) }

// migrate makes the tables of a new catalog, brings those of older versions up to
// this one, and refuses those of others: all in one transaction.
func (c *Catalog) migrate(ctx context.Context) error {
	return c.update(ctx, func(tx *sql.Tx) error {
		// The one table that every version has.
		if _, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)`); err != nil {
			return err
		}
		var version string
		err := tx.QueryRowContext(ctx, `SELECT value FROM meta WHERE name = 'schema'`).Scan(&version)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			err = create(ctx, tx)
		case err != nil:
		case version == firstVersion:
			err = upgrade(ctx, tx)
		case version == secondVersion:
			err = upgradeSecond(ctx, tx)
		case version != schemaVersion:
			err = fmt.Errorf("it has schema %s, this version reads %s", version, schemaVersion)
		}
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, sizesTable+`;`+sourcesTable)
		return err
	})
}

// create makes the tables of a new catalog.
func create(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, schema+startupSchema); err != nil {
		return fmt.Errorf("make the tables: %w", err)
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO meta (name, value) VALUES ('schema', ?)`, schemaVersion)
	return err
}

// upgrade makes a catalog of firstVersion one of schemaVersion. All trees get new
// locations, in turn.
func upgrade(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, startupSchema); err != nil {
		return fmt.Errorf("make the tables: %w", err)
	}
	if _, err := tx.ExecContext(ctx, `
		INSERT INTO layouts (tree, locations, wire, startup, due, changes, tries, unserved) SELECT tree, ?, 0, ?, 1, 1, 0, 0 FROM trees`,
		[]byte{}, []byte{}); err != nil {
		return err
	}
	return setVersion(ctx, tx)
}

// upgradeSecond makes a catalog of secondVersion one of schemaVersion.
func upgradeSecond(ctx context.Context, tx *sql.Tx) error {
	for _, change := range []string{`layouts ADD COLUMN used BIGINT NOT NULL DEFAULT 0`, `layouts ADD COLUMN lost BIGINT NOT NULL DEFAULT 0`,
		`traces ADD COLUMN sender TEXT NOT NULL DEFAULT ''`} {
		if _, err := tx.ExecContext(ctx, `ALTER TABLE `+change); err != nil {
			return fmt.Errorf("change the tables: %w", err)
		}
	}
	return setVersion(ctx, tx)
}

func setVersion(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `UPDATE meta SET value = ? WHERE name = 'schema'`, schemaVersion)
	return err
}

// update runs fn in a transaction that writes. fn must not touch the network.
func (c *Catalog) update(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := c.write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("write to the catalog: %w", err)
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, ignoreDone(tx.Rollback()))
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("write to the catalog: %w", err)
	}
	return nil
}

// ignoreDone drops the error of a rollback that came too late: the driver has
// rolled back already when the context ended.
func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

// each runs a query and calls scan for each of its rows.
func each(ctx context.Context, db querier, scan func(*sql.Rows) error, query string, args ...any) error {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("read the catalog: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return fmt.Errorf("read the catalog: %w", err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read the catalog: %w", err)
	}
	return nil
}

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// places writes n rows of k placeholders: (?,?),(?,?).
func places(n, k int) string {
	row := "(" + strings.TrimSuffix(strings.Repeat("?,", k), ",") + ")"
	return strings.TrimSuffix(strings.Repeat(row+",", n), ",")
}
