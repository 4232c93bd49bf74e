// Package database is the SQL database of the hub's catalog: SQLite, which one process uses, or
// PostgreSQL, which any number of processes use at the same time. A statement is written once and
// runs on both.
//
// It promises:
//   - Update commits a transaction completely or not at all. A transaction that PostgreSQL has
//     ended because of another one runs again. The end of the caller's context does not interrupt
//     a commit.
//   - An error matches ErrAway if the database cannot be reached, or its disk is full. Other errors
//     are the statement's own. Public is the text of an error without the names of the database's
//     host and user.
//   - A database that a newer hub has migrated is refused, unless that hub has left it usable.
//
// The package knows no tables, except the row of table meta that Open describes: package catalog
// has the tables, the statements and the migrations. The clocks of processes may differ, so
// statements compare times with the database's clock (Dialect.Clock).
//
// A hazard: SQLite has one connection for writing. While a transaction runs, all other writers
// wait.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"lighter/sleep"
)

// DB is a connected database. It is safe for concurrent use.
type DB struct {
	// Read and Write run single statements outside of transactions. Statements that change rows
	// need Write.
	Read, Write Session

	place            Place
	writing, reading *sql.DB // SQLite has one connection for writing; PostgreSQL has one pool for both
	onCommit         CommitObserver
	onFull           func() bool
}

// Open connects to the database at a place, and makes what is missing in it. An older schema is
// migrated to the newest.
//
// The files are migrations of goose, in one directory for each kind of database: sqlite and
// postgres. They make a table meta of names and values. Its row oldest is the number of the oldest
// schema whose hubs may still use the database.
func Open(ctx context.Context, p Place, files fs.FS) (*DB, error) {
	db, err := Connect(p)
	if err != nil {
		return nil, err
	}
	if err = db.checkEncoding(ctx); err == nil {
		err = p.makeSchema(ctx, db)
	}
	if err == nil {
		err = db.migrate(ctx, files)
	}
	if err != nil {
		return nil, mark(errors.Join(err, db.Close()))
	}
	return db, nil
}

// Connect connects to the database at a place. Unlike Open it makes and migrates nothing. The first
// statement finds out whether the database can be reached.
func Connect(p Place) (*DB, error) {
	db := &DB{place: p, onCommit: func(context.Context, string, bool) {}, onFull: func() bool { return false }}
	d := sqliteDialect
	var err error
	if IsPostgres(p.Source) {
		d = postgresDialect
		db.writing, err = openPostgres(p)
		db.reading = db.writing
	} else if err = checkTemporary(temporaryDirs()); err != nil {
		return nil, err
	} else if db.writing, err = openSQLite(p, "&_txlock=immediate", 1); err == nil {
		if db.reading, err = openSQLite(p, "&_pragma=query_only(1)", sqliteReaders); err != nil {
			err = errors.Join(err, db.writing.Close())
		}
	}
	if err != nil {
		return nil, mark(err)
	}
	db.Write, db.Read = Session{on: db.writing, Dialect: d}, Session{on: db.reading, Dialect: d}
	return db, nil
}

// checkEncoding returns an error if a database of PostgreSQL does not store UTF-8: it could not
// store all names of files, or would not know their characters.
func (db *DB) checkEncoding(ctx context.Context) error {
	if !IsPostgres(db.place.Source) {
		return nil // SQLite makes its files with UTF-8
	}
	encoding, err := Get(ctx, db.Read, Value[string], `SELECT current_setting('server_encoding')`)
	if err == nil && encoding != "UTF8" {
		err = fmt.Errorf("the database has the encoding %s, want UTF8: make another one (createdb "+
			"--encoding=UTF8 --template=template0), and copy what this one has (pg_dump, pg_restore)", encoding)
	}
	return err
}

// Close closes the database.
func (db *DB) Close() error { return errors.Join(db.reading.Close(), db.writing.Close()) }

// Observer is called with each statement before it runs, as the database gets it. args is nil if
// the statement is prepared. Tests look at the database's plans with it.
type Observer func(ctx context.Context, statement string, args []any)

// Observe sets the observer. It is called before others use the database.
func (db *DB) Observe(o Observer) { db.Write.observe, db.Read.observe = o, o }

// CommitObserver is called just before and just after each transaction commits. what is the
// argument of Update. Tests end the process there.
type CommitObserver func(ctx context.Context, what string, committed bool)

// ObserveCommits sets the observer of commits. It is called before others use the database.
func (db *DB) ObserveCommits(o CommitObserver) { db.onCommit = o }

// OnFull sets the function that is called when the disk of an SQLite database is full. makeRoom
// reports whether it has made room: then the transaction runs again. OnFull is called before others
// use the database.
func (db *DB) OnFull(makeRoom func() bool) { db.onFull = makeRoom }

// transactionTries is how often a transaction is run that PostgreSQL has ended because of another
// one.
const transactionTries = 10

// Update runs fn in a transaction for writing. On SQLite all other writers wait until it ends, so
// fn must be short. fn may run several times, and only the last run counts. what is the operation:
// errors begin with it.
func (db *DB) Update(ctx context.Context, what string, fn func(tx Session) error) error {
	var err error
	for range transactionTries {
		err = db.transaction(ctx, what, fn)
		if !isConflict(err) && (!isFull(err) || !db.onFull()) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Exec runs one statement in a transaction of its own. what is as for Update.
func (db *DB) Exec(ctx context.Context, what, statement string, args ...any) error {
	return db.Update(ctx, what, func(tx Session) error { return tx.Exec(ctx, statement, args...) })
}

// Now returns the database's time.
func (db *DB) Now(ctx context.Context) (time.Time, error) {
	return Get(ctx, db.Read, func(t *time.Time) []any { return []any{Stamp(t)} }, `SELECT `+db.Read.Clock)
}

// CopyTo writes a copy of an SQLite database, as it is now, to a new file. Others use the database
// meanwhile, also for writing: a copy may take minutes, so it has a connection of its own.
func (db *DB) CopyTo(ctx context.Context, path string) error {
	own, err := openSQLite(db.place, "", 1)
	if err != nil {
		return mark(err)
	}
	err = Session{own, db.Write.Dialect, db.Write.observe}.Exec(ctx, `VACUUM INTO ?`, path)
	return errors.Join(err, own.Close())
}

const (
	// commitTime is how long a commit may still take once the caller's context has ended.
	commitTime = 5 * time.Second
	// outlastTime is how long a write with the context of Outlast may still take.
	outlastTime = 5 * time.Second
)

// Outlast returns a context for a write that has to happen even if ctx has ended: it completes what
// the caller has done. The context ends some seconds after ctx, so that a database that does not
// answer keeps no process from ending. The caller calls end.
func Outlast(ctx context.Context) (longer context.Context, end func()) {
	return outlast(ctx, outlastTime)
}

// outlast returns a context that ends when end is called, or when ctx has ended for the given time.
func outlast(ctx context.Context, by time.Duration) (longer context.Context, end func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		sleep.For(longer, by)
		cancel()
	})
	return longer, func() {
		stop()
		cancel()
	}
}

// transaction runs fn and commits. If ctx ends during the commit, the commit still gets commitTime:
// after an interrupted commit nobody knows whether the transaction has happened.
func (db *DB) transaction(ctx context.Context, what string, fn func(tx Session) error) error {
	connection, err := db.writing.Conn(ctx)
	if err != nil {
		return mark(err)
	}
	defer connection.Close()
	life, end := outlast(ctx, commitTime)
	defer end()
	tx, err := connection.BeginTx(life, nil)
	if err != nil {
		return mark(err)
	}
	defer tx.Rollback() // does nothing after Commit
	if err := fn(Session{tx, db.Write.Dialect, db.Write.observe}); err != nil {
		return err
	}
	db.onCommit(ctx, what, false)
	if err := tx.Commit(); err != nil {
		return mark(err)
	}
	db.onCommit(ctx, what, true)
	return nil
}
