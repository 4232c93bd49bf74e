// Package catalog is the hub's database: images and their states, chains, trees, the unit of each
// chunk, and what is known about how images start. It has no contents: package objects has these.
//
// A row exists only after the object that it names was stored and verified. An image becomes ready
// together with all its rows, in one transaction.
//
// Each part of the hub uses a few methods of Catalog and names them in an interface of its own. The
// parts are:
//
//   - images.go: names, states and the queue; manifests.go: what nodes ask about a manifest;
//     inspect.go: what users ask about an image.
//   - chains.go: chains, statements and layers; signatures.go: statements that are signed again.
//   - chunks.go: the unit of each chunk; publish.go and inherit.go: the rows of a new image;
//     derived.go: trees that were made on request.
//   - layouts.go: locations, startup packs, and which trees are due for a layout; traces.go: traces
//     and recordings; used.go: the eviction of startup packs.
//   - sizes.go, owners.go and runs.go: the bytes that no other image shares.
//
// All SQL of the hub is in this package; directory migrations has the tables, and sql.go the
// functions that run statements. The database is SQLite, and only one process may write to it.
package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"

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
// Errors say what was to be done.
func (c *Catalog) update(ctx context.Context, what string, fn func(tx *sql.Tx) error) error {
	tx, err := c.write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer tx.Rollback() // does nothing after Commit
	if err = fn(tx); err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// exec runs one statement in a transaction of its own.
func (c *Catalog) exec(ctx context.Context, what, statement string, args ...any) error {
	if err := exec(ctx, c.write, statement, args...); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
