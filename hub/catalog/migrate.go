package catalog

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
)

// The schema is made by migrations, each in a transaction of its own. A migration that was released
// is never changed.
//
//go:embed migrations/*.sql
var migrations embed.FS

// migrate brings the database to the newest schema. It refuses one that a newer hub has migrated.
func migrate(ctx context.Context, db *sql.DB) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, files)
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
	if has > newest {
		return fmt.Errorf("its schema is %d, but this version knows only schemas up to %d: "+
			"it was opened by a newer hub", has, newest)
	}
	_, err = provider.Up(ctx)
	return err
}
