// Package catalog is the hub's database: images and their states, chains, trees, the unit of each
// chunk, and what is known about how images start. It has no contents: package objects has these.
//
// A row exists only after the object that it names was stored and verified. An image becomes ready
// together with all its rows, in one transaction.
//
// All SQL of the hub is in this package; directory migrations has the tables. The database is
// SQLite, and only one process may write to it.
package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// ErrNotFound means that the catalog has no such entry.
var ErrNotFound = errors.New("not found")

// readers bounds the connections for reading. There is one for writing.
const readers = 4

// Catalog is an open catalog. It is safe for concurrent use.
type Catalog struct {
	write *sql.DB // one connection: SQLite allows one writer, and database/sql queues fairly
	read  *sql.DB

	changes changes
	sizes   sizesState
}

// Open opens the catalog in the file at path. It makes a new one if the file is missing, and
// migrates an older one.
func Open(ctx context.Context, path string) (*Catalog, error) {
	write, err := open(path, "&_txlock=immediate", 1)
	if err != nil {
		return nil, err
	}
	read, err := open(path, "&_pragma=query_only(1)", readers)
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	c := &Catalog{write: write, read: read, changes: changes{wake: make(chan struct{}, 1)}, sizes: newSizesState()}
	if err := migrate(ctx, write); err != nil {
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

// update runs fn in a transaction for writing. Other writers wait meanwhile, so fn must be short.
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

// ignoreDone drops the error of a rollback after the driver itself has rolled back, because the
// context ended.
func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

// each runs a query and calls scan for each row of the result.
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

// places returns n rows of k placeholders: (?,?),(?,?).
func places(n, k int) string {
	row := "(" + strings.TrimSuffix(strings.Repeat("?,", k), ",") + ")"
	return strings.TrimSuffix(strings.Repeat(row+",", n), ",")
}
