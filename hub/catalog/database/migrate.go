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
	newer, err := db.isNewer(ctx, provider)
	if err == nil && !newer {
		_, err = provider.Up(ctx)
	}
	return err
}

// ErrNewer means that a newer hub has migrated the database and not left it usable for this one.
var ErrNewer = errors.New("it was opened by a newer hub; start that version, or restore a backup")

// RefuseNewer returns ErrNewer if a newer hub has migrated the database and not left it usable. It
// changes nothing. The files are as for Open.
func (db *DB) RefuseNewer(ctx context.Context, files fs.FS) error {
	provider, err := db.migrations(files)
	if err == nil {
		_, err = db.isNewer(ctx, provider)
	}
	return mark(err)
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

// isNewer reports whether a newer hub has migrated the database. The error wraps ErrNewer if that
// hub has not left the database usable for this one.
func (db *DB) isNewer(ctx context.Context, provider *goose.Provider) (bool, error) {
	has, err := provider.GetDBVersion(ctx)
	if err != nil {
		return false, err
	}
	newest := int64(0)
	for _, source := range provider.ListSources() {
		newest = max(newest, source.Version)
	}
	if has <= newest {
		return false, nil
	}
	oldest, err := Get(ctx, db.Write, Value[string], `SELECT value FROM meta WHERE name = 'oldest'`)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return true, err
	}
	if n, err := strconv.ParseInt(oldest, 10, 64); err != nil || n > newest {
		return true, fmt.Errorf("its schema is %d, but this version knows only schemas up to %d: %w",
			has, newest, ErrNewer)
	}
	return true, nil
}
