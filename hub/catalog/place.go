package catalog

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Place is where a catalog is, and what it may use.
type Place struct {
	// Source is the path of an SQLite file, or the URL of a database of PostgreSQL:
	// postgres://USER:PASSWORD@HOST:PORT/DATABASE.
	Source string
	// Schema is the schema of the database of PostgreSQL that has the catalog. It is made if it is
	// missing. Empty: the first one of the user's search_path, which exists.
	Schema string
	// Sharing is the number of catalogs that the process opens: together they use about as many
	// connections and as much memory as one. 0: one.
	Sharing int
}

// share returns the catalog's part of what a process may use, and at least the minimum.
func (p Place) share(all, least int) int { return max(all/max(p.Sharing, 1), least) }

// schemaLock is the number of the lock under which processes make schemas, one at a time:
// concurrent ones fail, even with IF NOT EXISTS.
const schemaLock = 0x6c696768746572 // "lighter"

// makeSchema makes the place's schema.
func (p Place) makeSchema(ctx context.Context, db *database) error {
	if p.Schema == "" {
		return nil
	}
	return db.update(ctx, "make schema "+p.Schema, func(tx session) error {
		if err := exec(ctx, tx, `SELECT pg_advisory_xact_lock(?)`, schemaLock); err != nil {
			return err
		}
		has, err := get(ctx, tx, value[bool], `SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = ?)`, p.Schema)
		if err != nil || has {
			return err // the user may use the schema and not be allowed to make one
		}
		return exec(ctx, tx, `CREATE SCHEMA `+pgx.Identifier{p.Schema}.Sanitize())
	})
}

// String names the place in errors. It has no password.
func (p Place) String() string {
	if p.Schema == "" {
		return nameOf(p.Source)
	}
	return fmt.Sprintf("%s, schema %s", nameOf(p.Source), p.Schema)
}
