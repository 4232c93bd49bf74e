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
var migrations embed.FS

// migrate brings the database to the newest schema. It refuses one that a newer hub has migrated,
// unless that hub has left it usable.
func migrate(ctx context.Context, db *sql.DB, in session) error {
	files, err := fs.Sub(migrations, "migrations/"+in.dir)
	if err != nil {
		return err
	}
	var options []goose.ProviderOption
	if in.dialect == postgresDialect {
		locker, err := lock.NewPostgresSessionLocker() // several hubs may start at the same time
		if err != nil {
			return err
		}
		options = append(options, goose.WithSessionLocker(locker))
	}
	provider, err := goose.NewProvider(in.goose, db, files, options...)
	if err != nil {
		return err
	}
	has, err := provider.GetDBVersion(ctx)
	if err != nil {
		return err
	}
	newest := int64(0)
	for _, source := range provider.ListSources() {
		newest = max(newest, source.Version)
	}
	if has <= newest {
		_, err = provider.Up(ctx)
		return err
	}
	oldest, err := get(ctx, in, value[string], `SELECT value FROM meta WHERE name = 'oldest'`)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	if n, err := strconv.ParseInt(oldest, 10, 64); err != nil || n > newest {
		return fmt.Errorf("its schema is %d, but this version knows only schemas up to %d: "+
			"it was opened by a newer hub", has, newest)
	}
	return nil
}
