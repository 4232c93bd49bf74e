// Package catalog is the hub's database: images and their states, chains, trees, the unit of each
// chunk, and what is known about how images start. It has no contents: package objects has these.
//
// A row exists only after the object that it names was stored and verified. An image becomes ready
// together with all its rows, in one transaction.
//
// Each part of the hub uses a few methods of Catalog and names them in an interface of its own. The
// parts are:
//
//   - images.go: names and states; manifests.go: what nodes ask about a manifest;
//     inspect.go: what users ask about an image.
//   - chains.go: chains, statements and layers; signatures.go: statements that are signed again.
//   - jobs.go (Jobs): the queue of the hub's work; claims.go (Claims): objects that are being
//     stored or deleted (holds.go: backups); checks.go (Checks): what is compared with the bucket,
//     and how far that has come.
//   - chunks.go: the unit of each chunk; publish.go and publish_layout.go: the rows of a new
//     image; derived.go: trees that were made on request.
//   - layouts.go: locations, startup packs, and which trees are due for a layout; traces.go: traces
//     and recordings; used.go: the eviction of startup packs.
//   - upstream.go: layers that other registries have; blobs.go (Blobs): which blobs of the hub's
//     registry clients rely on.
//   - held.go: the trees that nodes and mirrors have.
//   - collect.go and marks.go (Garbage): what no image needs any more; collected.go: publications
//     beside its removal.
//   - sizes.go, owners.go and runs.go: the bytes that no other image shares.
//
// All SQL of the hub is in this package; directory migrations has the tables, sql.go the functions
// that run statements, and database.go what differs between the databases: SQLite, which one
// process uses, and PostgreSQL, which any number of processes use at the same time.
package catalog

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"lighter/hub/catalog/database"
)

// Catalog is an open catalog. It is safe for concurrent use.
type Catalog struct {
	db      *database.DB
	Jobs    *Jobs
	Claims  *Claims
	Checks  *Checks
	Garbage *Garbage
	Blobs   *Blobs
	Holders *Holders
	Starts  *Starts
	Repairs *Repairs

	changes changes
	sized   atomic.Int64 // changes that image_sizes includes; -1: unknown
}

func newCatalog(db *database.DB) *Catalog {
	c := &Catalog{db: db, Jobs: &Jobs{db}, Claims: &Claims{db}, Checks: &Checks{db},
		Garbage: &Garbage{db}, Blobs: &Blobs{db},
		Holders: &Holders{db}, Starts: &Starts{db}, Repairs: &Repairs{db},
		changes: changes{wake: make(chan struct{}, 1)}}
	c.sized.Store(-1)
	return c
}

// Close closes the catalog.
func (c *Catalog) Close() error { return c.db.Close() }

// Now returns the database's time. All times in the catalog are by the database's clock: those of
// the hub's processes may differ.
func (c *Catalog) Now(ctx context.Context) (time.Time, error) { return c.db.Now(ctx) }

// OnFull sets the function that is called when the disk of an SQLite catalog is full. makeRoom
// reports whether it has made room: then the transaction runs again. OnFull is called before others
// use the catalog.
func (c *Catalog) OnFull(makeRoom func() bool) { c.db.OnFull(makeRoom) }

// Observe sets the observer of statements. It is called before others use the catalog.
func (c *Catalog) Observe(o database.Observer) { c.db.Observe(o) }

// ObserveCommits sets the observer of commits. It is called before others use the catalog.
func (c *Catalog) ObserveCommits(o database.CommitObserver) { c.db.ObserveCommits(o) }

// Snapshot writes a copy of an SQLite catalog, as it is now, to a new file. Others use the catalog
// meanwhile.
func (c *Catalog) Snapshot(ctx context.Context, path string) error {
	if err := c.db.CopyTo(ctx, path); err != nil {
		return fmt.Errorf("copy the catalog: %w", err)
	}
	return nil
}
