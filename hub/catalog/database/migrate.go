package database

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// migrate migrates the database to the newest schema. A newer database that this hub may use stays
// as it is. The error wraps ErrNewer if this hub may not use it.
func (db *DB) migrate(ctx context.Context, files fs.FS) error {
	provider, err := db.migrations(files)
	if err != nil {
		return err
	}
	has, err := provider.GetDBVersion(ctx)
	if err != nil {
		return err
	}
	if sources := provider.ListSources(); has > sources[len(sources)-1].Version {
		return db.RefuseNewer(ctx, files)
	}
	_, err = provider.Up(ctx)
	return err
}

// migrations returns goose's provider of the migrations in files.
func (db *DB) migrations(files fs.FS) (*goose.Provider, error) {
	d := db.Write.Dialect
	dir, err := fs.Sub(files, d.dir)
	if err != nil {
		return nil, err
	}
	var options []goose.ProviderOption
	if d.numbered { // PostgreSQL: several hubs may start at the same time
		locker, err := lock.NewPostgresSessionLocker()
		if err != nil {
			return nil, err
		}
		options = append(options, goose.WithSessionLocker(locker))
	}
	return goose.NewProvider(d.goose, db.writing, dir, options...)
}

// ErrNewer means that a newer hub has migrated the database and not left it usable for this one.
var ErrNewer = errors.New("it was opened by a newer hub; start that version, or restore a backup")

// Newest returns the number of the newest schema that the migrations in files make. It is the same
// for each kind of database.
func Newest(files fs.FS) (int64, error) { return sqliteDialect.newest(files) }

// newest returns the number of the dialect's newest migration.
func (d *Dialect) newest(files fs.FS) (int64, error) {
	names, err := fs.ReadDir(files, d.dir)
	if err != nil {
		return 0, err
	}
	return goose.NumericComponent(names[len(names)-1].Name()) // the names are in order
}

// RefuseNewer returns ErrNewer if a newer hub has migrated the database and not left it usable. It
// changes nothing. The files are as for Open.
func (db *DB) RefuseNewer(ctx context.Context, files fs.FS) error {
	newest, err := db.Read.Dialect.newest(files)
	if err != nil {
		return err
	}
	oldest, err := Get(ctx, db.Read, Value[string], `SELECT value FROM meta WHERE name = 'oldest'`)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	if n, err := strconv.ParseInt(oldest, 10, 64); err != nil || n > newest {
		return fmt.Errorf("hubs need schema %s to use it, but this version knows only schemas up to %d: %w",
			oldest, newest, ErrNewer)
	}
	return nil
}
