package catalog

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"modernc.org/sqlite" // and the driver "sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"lighter/hub/away"
	"lighter/sleep"
)

// dialect is what differs between the databases.
type dialect struct {
	goose    goose.Dialect
	dir      string // of its migrations
	numbered bool   // arguments are $1, $2, … instead of ?
	clock    string // the database's time, in milliseconds since 1970
	lock     string // ends a query that locks its rows
	skip     string // ends a query that locks its rows: rows that others have locked are skipped
	share    string // ends a query whose rows nobody changes before the transaction ends
	// absent locks the kind and key of a job that does not exist until the transaction ends; empty:
	// there is only one transaction at a time.
	absent string
	// integrity is a query that returns a line for each damage of the database's files; empty: the
	// database checks them itself.
	integrity string
}

var (
	sqliteDialect = &dialect{goose: goose.DialectSQLite3, dir: "sqlite",
		clock: `CAST(unixepoch('subsec') * 1000 AS INTEGER)`, integrity: `PRAGMA integrity_check(20)`}
	postgresDialect = &dialect{goose: goose.DialectPostgres, dir: "postgres", numbered: true,
		clock: `CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)`,
		lock:  ` FOR UPDATE`,
		skip:  ` FOR UPDATE SKIP LOCKED`, share: ` FOR SHARE`,
		absent: `SELECT pg_advisory_xact_lock(
			hashtextextended(concat_ws(' ', current_schema(), 'job', ?::text, ?::text), 0))`}
)

// bind returns a statement with the database's placeholders.
func (d *dialect) bind(statement string) string {
	if !d.numbered {
		return statement
	}
	var b strings.Builder
	b.Grow(len(statement) + len(statement)/4)
	n := 0
	for {
		before, after, found := strings.Cut(statement, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		n++
		b.WriteString("$" + strconv.Itoa(n))
		statement = after
	}
}

// IsPostgres reports whether source is a URL of PostgreSQL, and not the path of an SQLite file.
func IsPostgres(source string) bool {
	return strings.HasPrefix(source, "postgres://") || strings.HasPrefix(source, "postgresql://")
}

const (
	sqliteReaders       = 4      // connections for reading; there is one for writing
	sqliteCache         = 32_000 // KiB that a connection keeps in memory, of all catalogs
	postgresConnections = 16
	leastConnections    = 4 // however many catalogs there are
	connectTimeout      = 10 * time.Second
	// closeAfter is the time without a statement after which a connection is closed, so that idle
	// catalogs need little memory, here and in the server.
	closeAfter = time.Minute
	// idleTimeout is the longest pause between two statements of a transaction with PostgreSQL.
	idleTimeout = 5 * time.Second
)

// openSQLite opens the database in a file.
func openSQLite(p Place, options string, connections int) (*sql.DB, error) {
	dsn := "file:" + (&url.URL{Path: p.Source}).EscapedPath() +
		"?_pragma=journal_mode(wal)&_pragma=synchronous(full)&_pragma=busy_timeout(10000)&_pragma=foreign_keys(1)" +
		fmt.Sprintf("&_pragma=cache_size(-%d)", p.share(sqliteCache, 1)) + options
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, err
	}
	limit(db, connections)
	return db, nil
}

// limit bounds the connections of a database.
func limit(db *sql.DB, connections int) {
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	db.SetConnMaxIdleTime(closeAfter)
}

// openPostgres opens the database at a URL. It does not connect yet.
func openPostgres(p Place) (*sql.DB, error) {
	config, err := pgx.ParseConfig(p.Source)
	if err != nil {
		return nil, errors.New("its URL is not valid: want postgres://USER:PASSWORD@HOST:PORT/DATABASE")
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	// A connection whose other end is gone must not block statements for minutes.
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second,
		Interval: 5 * time.Second, Count: 3}}
	config.DialFunc = dialer.DialContext
	// A process that is stopped in a transaction must not keep its locks: others wait for them.
	config.RuntimeParams["idle_in_transaction_session_timeout"] = strconv.FormatInt(idleTimeout.Milliseconds(), 10)
	if p.Schema != "" {
		config.RuntimeParams["search_path"] = pgx.Identifier{p.Schema}.Sanitize()
	}
	db := stdlib.OpenDB(*config)
	limit(db, p.share(postgresConnections, leastConnections))
	return db, nil
}

// database is a connected database.
type database struct {
	writing, reading *sql.DB // SQLite has one connection for writing; PostgreSQL has one pool for both
	write, read      session
	onCommit         CommitObserver
	onFull           func() bool
}

func connect(p Place) (*database, error) {
	db := &database{onCommit: func(context.Context, string, bool) {}, onFull: func() bool { return false }}
	d := sqliteDialect
	var err error
	if IsPostgres(p.Source) {
		d = postgresDialect
		db.writing, err = openPostgres(p)
		db.reading = db.writing
	} else if db.writing, err = openSQLite(p, "&_txlock=immediate", 1); err == nil {
		if db.reading, err = openSQLite(p, "&_pragma=query_only(1)", sqliteReaders); err != nil {
			err = errors.Join(err, db.writing.Close())
		}
	}
	if err != nil {
		return nil, err
	}
	db.write, db.read = session{on: db.writing, dialect: d}, session{on: db.reading, dialect: d}
	return db, nil
}

// Close closes the database.
func (db *database) Close() error { return errors.Join(db.reading.Close(), db.writing.Close()) }

// nameOf names a database in errors. It has no password.
func nameOf(source string) string {
	if !IsPostgres(source) {
		return source
	}
	u, err := url.Parse(source)
	if err != nil {
		return "in PostgreSQL"
	}
	u.RawQuery = ""
	return u.Redacted()
}

// session runs statements on a database or in a transaction. In the statements, ? stands for an
// argument.
type session struct {
	on interface {
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
		PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	}
	*dialect
	observe Observer // nil: none
}

// Observer is called with each statement before it runs, as the database gets it. Of a statement
// that is prepared it gets no arguments. Tests look at the database's plans with it.
type Observer func(ctx context.Context, statement string, args []any)

// Observe sets the catalog's observer. It is called before the catalog is used by others.
func (db *database) Observe(o Observer) { db.write.observe, db.read.observe = o, o }

// CommitObserver is called just before and just after each transaction commits. what says what it
// does. Tests end the process there.
type CommitObserver func(ctx context.Context, what string, committed bool)

// ObserveCommits sets the catalog's observer of commits. It is called before the catalog is used by
// others.
func (db *database) ObserveCommits(o CommitObserver) { db.onCommit = o }

// bound returns a statement as the database gets it, and calls the observer.
func (s session) bound(ctx context.Context, statement string, args []any) string {
	statement = s.bind(statement)
	if s.observe != nil {
		s.observe(ctx, statement, args)
	}
	return statement
}

func (s session) query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := s.on.QueryContext(ctx, s.bound(ctx, query, args), args...)
	return rows, mark(err)
}

func (s session) queryRow(ctx context.Context, query string, args ...any) *sql.Row {
	return s.on.QueryRowContext(ctx, s.bound(ctx, query, args), args...)
}

func (s session) exec(ctx context.Context, statement string, args ...any) (sql.Result, error) {
	done, err := s.on.ExecContext(ctx, s.bound(ctx, statement, args), args...)
	return done, mark(err)
}

func (s session) prepare(ctx context.Context, statement string) (*sql.Stmt, error) {
	prepared, err := s.on.PrepareContext(ctx, s.bound(ctx, statement, nil))
	return prepared, mark(err)
}

// transactionTries is how often a transaction is run that PostgreSQL has ended because of another
// one.
const transactionTries = 10

// update runs fn in a transaction for writing. On SQLite other writers wait meanwhile, so fn must
// be short. fn may run several times. Errors say what was to be done.
func (db *database) update(ctx context.Context, what string, fn func(tx session) error) error {
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

const (
	// commitTime is how long a commit may still take once the caller's context has ended.
	commitTime = 5 * time.Second
	// outlastTime is how long a write with the context of Outlast may still take.
	outlastTime = 5 * time.Second
)

// Outlast returns the context of a write that completes what its caller has done, also if ctx has
// ended. It ends some seconds after ctx, so that a database that does not answer keeps no process
// from ending. The caller calls end.
func Outlast(ctx context.Context) (longer context.Context, end func()) {
	return outlast(ctx, outlastTime)
}

// outlast returns a context that ends when end is called, or ctx has ended for a time.
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
// after an interrupted one nobody knows whether the transaction has happened.
func (db *database) transaction(ctx context.Context, what string, fn func(tx session) error) error {
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
	if err := fn(session{tx, db.write.dialect, db.write.observe}); err != nil {
		return err
	}
	db.onCommit(ctx, what, false)
	if err := tx.Commit(); err != nil {
		return mark(err)
	}
	db.onCommit(ctx, what, true)
	return nil
}

// isConflict reports whether PostgreSQL has ended a transaction because of another one: it was the
// victim of a deadlock, or could not be serialized. It has changed nothing.
func isConflict(err error) bool {
	var failed *pgconn.PgError
	return errors.As(err, &failed) && (failed.Code == "40001" || failed.Code == "40P01")
}

// OnFull sets a function that is called when the disk of an SQLite catalog is full. It reports
// whether it has made room: then the transaction runs again. OnFull is called before the catalog is
// used by others.
func (db *database) OnFull(makeRoom func() bool) { db.onFull = makeRoom }

// isFull reports whether the disk of an SQLite database is full.
func isFull(err error) bool {
	failed := (*sqlite.Error)(nil)
	return errors.As(err, &failed) && failed.Code()&0xff == sqlite3.SQLITE_FULL
}

// ErrAway marks errors of a database that cannot be reached, is starting or stopping, or whose disk
// is full. What was asked for may have been done.
var ErrAway = away.New("the database is not available")

// IsAway reports whether an error is marked with ErrAway.
func IsAway(err error) bool { return errors.Is(err, ErrAway) }

// mark marks an error of a database that is away, or that the hub cannot connect to.
func mark(err error) error {
	if err == nil || errors.As(err, new(*databaseError)) {
		return err
	}
	away := isAway(err)
	if !away && !errors.As(err, new(*pgconn.ConnectError)) {
		return err
	}
	return &databaseError{err, away}
}

// databaseError is an error of the connection to the database. Its text is for the log: a driver's
// errors name the database's user and host. Public is for everybody.
type databaseError struct {
	cause error
	away  bool // it is ErrAway
}

func (e *databaseError) Error() string        { return e.prefix() + ": " + e.cause.Error() }
func (e *databaseError) Unwrap() error        { return e.cause }
func (e *databaseError) Is(target error) bool { return target == ErrAway && e.away }

// Away implements the mark of package away.
func (e *databaseError) Away() bool { return e.away }

// Public is the error's text without the names of the database's user and host.
func (e *databaseError) Public() string {
	failed, errno := (*pgconn.PgError)(nil), syscall.Errno(0)
	switch {
	case isFull(e.cause):
		return e.prefix() + ": its disk is full"
	case errors.As(e.cause, &failed):
		return e.prefix() + " (SQLSTATE " + failed.Code + ")"
	case errors.As(e.cause, &errno):
		return e.prefix() + " (" + errno.Error() + ")"
	}
	return e.prefix()
}

func (e *databaseError) prefix() string {
	if e.away {
		return ErrAway.Error()
	}
	return "the database refuses the hub"
}

func isAway(err error) bool {
	if failed := (*pgconn.PgError)(nil); errors.As(err, &failed) {
		// Shutdown and start; no room on its disk, memory or connections; idleTimeout.
		return strings.HasPrefix(failed.Code, "57P") || strings.HasPrefix(failed.Code, "53") || failed.Code == "25P03"
	}
	if failed := (*sqlite.Error)(nil); errors.As(err, &failed) {
		code := failed.Code() & 0xff
		return code == sqlite3.SQLITE_BUSY || code == sqlite3.SQLITE_FULL
	}
	return errors.As(err, new(*pgconn.ConnectError)) || errors.As(err, new(*net.OpError)) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

// exec runs one statement in a transaction of its own.
func (db *database) exec(ctx context.Context, what, statement string, args ...any) error {
	return db.update(ctx, what, func(tx session) error { return exec(ctx, tx, statement, args...) })
}
