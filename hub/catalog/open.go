package catalog

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"lighter/hub/catalog/database"
	"lighter/sleep"
)

// Place is where a catalog is, and what it may use.
type Place = database.Place

// IsPostgres reports whether source is a URL of PostgreSQL, and not the path of an SQLite file.
func IsPostgres(source string) bool { return database.IsPostgres(source) }

// CheckURL returns an error if source is not a valid URL of PostgreSQL. It connects to nothing.
func CheckURL(source string) error { return database.CheckURL(source) }

// ErrNotFound means that the catalog has no such entry.
var ErrNotFound = database.ErrNotFound

// ErrAway means that the database cannot be reached, is starting or stopping, or that its disk is
// full. The catalog may have changed as it was asked to.
var ErrAway = database.ErrAway

// IsAway reports whether an error is ErrAway.
func IsAway(err error) bool { return errors.Is(err, ErrAway) }

// Outlast is database.Outlast.
func Outlast(ctx context.Context) (longer context.Context, end func()) { return database.Outlast(ctx) }

// migrations makes the schema, each in a transaction of its own. A migration that was released is
// never changed. Hubs of two releases may use one database of PostgreSQL at the same time. So a
// migration only adds, and a later release removes what no hub uses any more. In table meta, oldest
// is the oldest schema whose hubs may still use the database.
//
//go:embed migrations
var migrations embed.FS

// migrationFiles has a directory of migrations for each kind of database.
func migrationFiles() fs.FS {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the name is valid
	}
	return files
}

// Schema returns the number of the schema to which Open migrates a catalog.
func Schema() int64 {
	newest, err := database.Newest(migrationFiles())
	if err != nil {
		panic(err) // the files are part of the program
	}
	return newest
}

// Open opens a catalog, and makes what is missing in it. An older catalog is migrated. Times in the
// future are set back: the clock was wrong.
func Open(ctx context.Context, p Place) (*Catalog, error) {
	db, err := database.Open(ctx, p, migrationFiles())
	if err != nil {
		return nil, fmt.Errorf("open the catalog %s: %w", p, err)
	}
	c := newCatalog(db)
	if err := c.correctTimes(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open the catalog %s: %w", p, err), c.Close())
	}
	return c, nil
}

// Watch returns an error when a newer hub has migrated the catalog and not left it usable for this
// one, which then must not go on writing. It looks at once and after each interval, until ctx ends.
func (c *Catalog) Watch(ctx context.Context, interval time.Duration, log *slog.Logger) error {
	for {
		err := c.db.RefuseNewer(ctx, migrationFiles())
		switch {
		case errors.Is(err, database.ErrNewer):
			return fmt.Errorf("the hub ends, as it may no longer use its catalog: %w", err)
		case err != nil && ctx.Err() == nil:
			log.Warn("cannot read the catalog's version", "err", err)
		}
		if !sleep.For(ctx, interval) {
			return nil
		}
	}
}

// Ping returns an error if the database does not answer.
func (c *Catalog) Ping(ctx context.Context) error {
	_, err := c.db.Now(ctx)
	return err
}

// Attach opens the catalog of a hub that may be running. source is as for Open. Unlike Open it
// makes and migrates nothing.
func Attach(ctx context.Context, source string) (*Catalog, error) {
	return AttachAt(ctx, Place{Source: source})
}

// AttachAt is Attach for a place.
func AttachAt(ctx context.Context, p Place) (*Catalog, error) {
	if !IsPostgres(p.Source) {
		_, err := os.Stat(p.Source)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("open the catalog %s: no hub has made it yet: start the hub first: %w", p, err)
		}
		if err != nil {
			return nil, fmt.Errorf("open the catalog: %w", err)
		}
	}
	db, err := database.Connect(p)
	if err != nil {
		return nil, fmt.Errorf("open the catalog %s: %w", p, err)
	}
	c := newCatalog(db)
	what := ""
	if _, err = c.Claims.IsHeld(ctx); err == nil {
		err = db.RefuseNewer(ctx, migrationFiles())
	} else if !database.IsConnection(err) {
		what = "no hub of this version has opened it yet: start the hub first: "
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the catalog %s: %s%w", p, what, err), c.Close())
	}
	return c, nil
}
