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
// All SQL of the hub is in this package; directory migrations has the tables, sql.go the functions
// that run statements, and database.go what differs between the databases: SQLite, which one
// process uses, and PostgreSQL, which any number of processes use at the same time.
package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// ErrNotFound means that the catalog has no such entry.
var ErrNotFound = errors.New("not found")

// Catalog is an open catalog. It is safe for concurrent use.
type Catalog struct {
	writing, reading *sql.DB // SQLite has one connection for writing; PostgreSQL has one pool for both
	write, read      session

	changes changes
	sizes   sizesState
}

// Open opens a catalog, and makes what is missing in it. source is the path of an SQLite file, or
// the URL of a database of PostgreSQL: postgres://USER:PASSWORD@HOST:PORT/DATABASE. An older catalog
// is migrated.
func Open(ctx context.Context, source string) (*Catalog, error) {
	c, err := connect(source)
	if err == nil {
		if err = migrate(ctx, c.writing, c.write); err != nil {
			err = errors.Join(err, c.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the catalog %s: %w", nameOf(source), err)
	}
	return c, nil
}

func connect(source string) (*Catalog, error) {
	c := &Catalog{changes: changes{wake: make(chan struct{}, 1)}, sizes: newSizesState()}
	d := sqliteDialect
	var err error
	if IsPostgres(source) {
		d = postgresDialect
		c.writing, err = openPostgres(source)
		c.reading = c.writing
	} else if c.writing, err = openSQLite(source, "&_txlock=immediate", 1); err == nil {
		if c.reading, err = openSQLite(source, "&_pragma=query_only(1)", sqliteReaders); err != nil {
			err = errors.Join(err, c.writing.Close())
		}
	}
	if err != nil {
		return nil, err
	}
	c.write, c.read = session{c.writing, d}, session{c.reading, d}
	return c, nil
}

// Close closes the catalog.
func (c *Catalog) Close() error { return errors.Join(c.reading.Close(), c.writing.Close()) }
