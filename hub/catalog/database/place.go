package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"golang.org/x/sys/unix"
)

// Place is where a database is, and what it may use.
type Place struct {
	// Source is the path of an SQLite file, or the URL of a database of PostgreSQL:
	// postgres://USER:PASSWORD@HOST:PORT/DATABASE.
	Source string
	// Schema is the schema of PostgreSQL's database that has the tables. It is made if it is
	// missing. Empty: the first one of the user's search_path, which exists.
	Schema string
	// Sharing is the number of places that the process opens: together they use about as many
	// connections and as much memory as one. 0: one.
	Sharing int
}

// IsPostgres reports whether source is a URL of PostgreSQL, and not the path of an SQLite file.
func IsPostgres(source string) bool {
	return strings.HasPrefix(source, "postgres://") || strings.HasPrefix(source, "postgresql://")
}

const (
	sqliteReaders       = 4      // connections for reading; there is one for writing
	sqliteCache         = 32_000 // KiB of pages that a connection keeps in memory; the places share them
	postgresConnections = 16
	leastConnections    = 4 // of a place with PostgreSQL, however many places there are
	connectTimeout      = 10 * time.Second
	// closeAfter is the time without a statement after which a connection is closed, so that idle
	// databases need little memory, here and in the server.
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

// dialer ends a connection within 20 s after its other end is gone, so that statements are not
// blocked for minutes. The kernel sends no keepalive probes while sent data is not acknowledged:
// then the option TCP_USER_TIMEOUT ends the connection.
var dialer = &net.Dialer{
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3},
	Control: func(network, _ string, c syscall.RawConn) (err error) {
		if !strings.HasPrefix(network, "tcp") {
			return nil
		}
		failed := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 20_000) // milliseconds
		})
		return errors.Join(failed, err)
	},
}

// CheckURL returns an error if source is not a valid URL of PostgreSQL. It connects to nothing.
func CheckURL(source string) error {
	_, err := parseURL(source)
	return err
}

// parseURL parses a URL of PostgreSQL. The error does not have the URL, which may have a password.
func parseURL(source string) (*pgx.ConnConfig, error) {
	if config, err := pgx.ParseConfig(source); err == nil && IsPostgres(source) {
		return config, nil
	}
	return nil, errors.New("its URL is not valid: want postgres://USER:PASSWORD@HOST:PORT/DATABASE")
}

// openPostgres opens the database at a URL. It does not connect yet.
func openPostgres(p Place) (*sql.DB, error) {
	config, err := parseURL(p.Source)
	if err != nil {
		return nil, err
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
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

// share returns the place's part of what all places of a process may use, and at least the minimum.
func (p Place) share(all, least int) int { return max(all/max(p.Sharing, 1), least) }

// schemaLock is the number of the lock under which processes make schemas, one at a time:
// concurrent statements CREATE SCHEMA fail, even with IF NOT EXISTS.
const schemaLock = 0x6c696768746572 // "lighter"

// makeSchema makes the place's schema.
func (p Place) makeSchema(ctx context.Context, db *DB) error {
	if p.Schema == "" {
		return nil
	}
	return db.Update(ctx, "make schema "+p.Schema, func(tx Session) error {
		if err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(?)`, schemaLock); err != nil {
			return err
		}
		has, err := Get(ctx, tx, Value[bool], `SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = ?)`, p.Schema)
		if err != nil || has {
			return err // the user may use the schema and not be allowed to make one
		}
		return tx.Exec(ctx, `CREATE SCHEMA `+pgx.Identifier{p.Schema}.Sanitize())
	})
}

// String names the place in errors. It has no password.
func (p Place) String() string {
	if p.Schema == "" {
		return nameOf(p.Source)
	}
	return fmt.Sprintf("%s, schema %s", nameOf(p.Source), p.Schema)
}

// nameOf names a source without its password.
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
