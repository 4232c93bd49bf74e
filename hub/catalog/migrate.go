package catalog

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// The schema is made by migrations, each in a transaction of its own. A migration that was released
// is never changed. Hubs of two releases may use one database of PostgreSQL at the same time. So a
// migration only adds, and a later release removes what no hub uses any more. In table meta, oldest
// is the oldest schema whose hubs may still use the database.
//
//go:embed migrations
var migrationFiles embed.FS

// migrate brings the database to the newest schema. It refuses one that a newer hub has migrated,
// unless that hub has left it usable.
func migrate(ctx context.Context, db *sql.DB, in session) error {
	provider, err := migrations(db, in)
	if err != nil {
		return err
	}
	newer, err := isNewer(ctx, provider, in)
	if err == nil && !newer {
		_, err = provider.Up(ctx)
	}
	return err
}

// refuseNewer returns an error if a newer hub has migrated the database and not left it usable.
func refuseNewer(ctx context.Context, db *sql.DB, in session) error {
	provider, err := migrations(db, in)
	if err == nil {
		_, err = isNewer(ctx, provider, in)
	}
	return err
}

// migrations returns what migrates the database.
func migrations(db *sql.DB, in session) (*goose.Provider, error) {
	files, err := fs.Sub(migrationFiles, "migrations/"+in.dir)
	if err != nil {
		return nil, err
	}
	var options []goose.ProviderOption
	if in.dialect == postgresDialect {
		locker, err := lock.NewPostgresSessionLocker() // several hubs may start at the same time
		if err != nil {
			return nil, err
		}
		options = append(options, goose.WithSessionLocker(locker))
	}
	return goose.NewProvider(in.goose, db, files, options...)
}

// isNewer reports whether a newer hub has migrated the database. The error says that this hub
// cannot use it then.
func isNewer(ctx context.Context, provider *goose.Provider, in session) (bool, error) {
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
	oldest, err := get(ctx, in, value[string], `SELECT value FROM meta WHERE name = 'oldest'`)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return true, err
	}
	if n, err := strconv.ParseInt(oldest, 10, 64); err != nil || n > newest {
		return true, fmt.Errorf("its schema is %d, but this version knows only schemas up to %d: "+
			"it was opened by a newer hub; start that version, or restore a backup", has, newest)
	}
	return true, nil
}
