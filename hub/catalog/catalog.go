// Package catalog has the tables of the hub: images and their states, chains, trees, the unit of
// each chunk, jobs, and what is known about how images start. It does not have the contents of
// files: these are in objects (package objects).
//
// A row about a chunk, layer or tree is committed only when the objects that it names are stored,
// and their contents were verified. An image becomes ready together with all its rows, in one
// transaction.
//
// The package holds the hub's SQL statements, and the migrations of its schema. Package database
// runs them, and only this package imports it. Package database has a few statements of its own, to
// open, lock and copy a database. Package numberset has the sets of numbers that some columns hold.
//
// The package is large because there is one schema, and transactions reach across its tables. To
// publish an image, one transaction writes to a dozen tables. Many others check the lease of a job
// or a claim of objects besides their own rows. Parts in packages of their own would have to export
// their transactions to each other. Instead, some parts are types: Jobs, Claims, Checks, Garbage,
// Blobs, Holders, Starts, Repairs, Events, Wants, Wishlists and Hints. The others are methods of
// Catalog. Packages jobs and holders need one part each, and name its methods in an interface,
// Store. All other packages that read or change the catalog hold a *Catalog.
//
// catalog.go and open.go open a catalog. clock.go sets back future times of open jobs and of
// images. The other files are, about images and their layers:
//
//   - images.go: names, images and their states. inspect.go: what users ask about an image.
//     manifests.go: what nodes ask about a manifest. retention.go: when names were pushed and used.
//   - sizes.go: the bytes that only one image has. owners.go: for each blob and chunk, the image
//     that alone has it.
//   - chains.go: chains and layers. signatures.go: statements about chains. chunks.go: the units of
//     chunks.
//   - publish.go, publish_layout.go: the rows of a new image, in one transaction.
//   - upstream.go: layers that other registries have.
//   - hints.go (Hints): images of other registries that may have changed.
//   - events.go (Events): changes of images, which a trigger adds, and their deliveries to targets.
//   - wants.go (Wants): the images of other registries that the hub keeps, and for whom: a user, a
//     list, a hook, a pull or a push. wishlists.go (Wishlists): the lists that users have added,
//     and each list's last result.
//
// About who may do what, and what stays meanwhile:
//
//   - jobs.go, job_requests.go, job_leases.go, job_ends.go (Jobs): the queue of the hub's work. A
//     worker owns a job for a lease.
//   - claims.go (Claims): a publisher claims objects while it stores or deletes them.
//   - holds.go (Claims): while a backup has a hold, no object or blob is deleted.
//   - held.go (Holders): the trees that nodes and mirrors have reported. These stay.
//   - blobs.go (Blobs): when clients last relied on a blob, manifest or tag of the hub's registry.
//     A blob that nothing names, and no client has relied on lately, may be deleted.
//
// About how images start (Starts):
//
//   - layouts.go: locations, startup packs, and which trees need another layout. traces.go: traces
//     and recordings. used.go: when trees were used, and which of them lose their startup packs.
//
// About what is removed:
//
//   - collect.go (Garbage): trees, chains and layers that no image needs.
//   - marks.go (Garbage): chunks that no layer has, by mark and sweep, and the packs that have only
//     such chunks. rewrite.go (Garbage): packs of which a part is needed.
//   - collected.go: how removals and publications exclude each other.
//   - derived.go: trees that were made on request. Those that nobody holds are a cache: the least
//     recently used go.
//
// About checks of the hub's stores:
//
//   - checks.go (Checks): the objects and rows that are compared, and how far a check has come.
//     repair.go (Repairs): which trees, layers and images need a lost object, and the rows of
//     repaired objects.
package catalog

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync/atomic"
	"time"

	"lighter/hub/catalog/database"
)

// Catalog is an open catalog. It is safe for concurrent use, and so are its parts.
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
	Events  *Events
	Wants   *Wants
	Hints   *Hints

	Wishlists *Wishlists

	// keys are the public keys that this process signs with, as in table meta; nil: it signs
	// nothing.
	keys    atomic.Pointer[string]
	changes changes
	sized   atomic.Int64 // value of changes.n that table image_sizes is up to date with; -1: not known
}

func newCatalog(db *database.DB) *Catalog {
	c := &Catalog{db: db, Jobs: &Jobs{db}, Claims: &Claims{db}, Checks: &Checks{db},
		Garbage: &Garbage{db}, Blobs: &Blobs{db},
		Holders: &Holders{db}, Starts: &Starts{db}, Repairs: &Repairs{db}, Events: &Events{db},
		Wants: &Wants{db}, Wishlists: &Wishlists{db}, Hints: &Hints{db},
		changes: changes{wake: make(chan struct{}, 1)}}
	c.sized.Store(-1)
	return c
}

// Close closes the catalog.
func (c *Catalog) Close() error { return c.db.Close() }

// Now returns the database's time. The times in the catalog's columns are by the database's clock,
// because the clocks of the hub's processes may differ.
func (c *Catalog) Now(ctx context.Context) (time.Time, error) { return c.db.Now(ctx) }

// OnFull sets the function that is called when the disk of an SQLite catalog is full. makeRoom
// reports whether it has made room: then the transaction runs again. Call OnFull before others use
// the catalog.
func (c *Catalog) OnFull(makeRoom func() bool) { c.db.OnFull(makeRoom) }

// Observe sets the observer of SQL statements. Call it before others use the catalog.
func (c *Catalog) Observe(o database.Observer) { c.db.Observe(o) }

// ObserveCommits sets the observer of commits. Call it before others use the catalog.
func (c *Catalog) ObserveCommits(o database.CommitObserver) { c.db.ObserveCommits(o) }

// HubID returns the identity of the hub whose catalog this is. Copies of the catalog have it, too.
// It is made when it is asked for first.
func (c *Catalog) HubID(ctx context.Context) (id string, err error) {
	err = c.db.Update(ctx, "read the hub's identity", func(tx database.Session) error {
		id, err = database.Get(ctx, tx, database.Value[string], `INSERT INTO meta (name, value) VALUES ('hub', ?)
			ON CONFLICT (name) DO UPDATE SET value = meta.value RETURNING value`, rand.Text())
		return err
	})
	return id, err
}

// Snapshot writes a copy of an SQLite catalog, as it is now, to a new file. Others may use the
// catalog meanwhile.
func (c *Catalog) Snapshot(ctx context.Context, path string) error {
	if err := c.db.CopyTo(ctx, path); err != nil {
		return fmt.Errorf("copy the catalog: %w", err)
	}
	return nil
}
