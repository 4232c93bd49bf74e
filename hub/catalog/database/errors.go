package database

import (
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"lighter/hub/away"
)

// ErrNotFound means that a query has found no row.
var ErrNotFound = errors.New("not found")

// ErrAway marks errors of a database that cannot be reached, is starting or stopping, or whose disk
// is full. The statement may have run nevertheless.
var ErrAway = away.New("the database is not available")

// IsConnection reports whether an error is of the connection, and not of a statement: the database
// is away, or does not let the hub in.
func IsConnection(err error) bool { return errors.As(err, new(*connectionError)) }

// mark marks an error if the database is away, or if the hub cannot connect to it.
func mark(err error) error {
	if err == nil || IsConnection(err) {
		return err
	}
	isAway := meansAway(err)
	if !isAway && !errors.As(err, new(*pgconn.ConnectError)) {
		return err
	}
	return &connectionError{err, isAway}
}

// connectionError is an error of the connection to the database. Its text is for the log: the
// errors of drivers name the database's user and host. Public is for everybody.
type connectionError struct {
	cause error
	away  bool // it is ErrAway
}

func (e *connectionError) Error() string        { return e.prefix() + ": " + e.cause.Error() }
func (e *connectionError) Unwrap() error        { return e.cause }
func (e *connectionError) Is(target error) bool { return target == ErrAway && e.away }

// Away implements the mark of package away.
func (e *connectionError) Away() bool { return e.away }

// Public is the error's text without the names of the database's user and host.
func (e *connectionError) Public() string {
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

func (e *connectionError) prefix() string {
	if e.away {
		return ErrAway.Error()
	}
	return "the database refuses the hub"
}

// meansAway reports whether a driver's error means that the database is away.
func meansAway(err error) bool {
	if failed := (*pgconn.PgError)(nil); errors.As(err, &failed) {
		// Shutdown and start; no room on its disk, memory or connections; idleTimeout.
		return strings.HasPrefix(failed.Code, "57P") || strings.HasPrefix(failed.Code, "53") || failed.Code == "25P03"
	}
	if failed := (*sqlite.Error)(nil); errors.As(err, &failed) {
		code := failed.Code() & 0xff
		return code == sqlite3.SQLITE_BUSY || code == sqlite3.SQLITE_FULL
	}
	// Nothing was sent: the connection was closed by an earlier failure.
	if pgconn.SafeToRetry(err) {
		return true
	}
	return errors.As(err, new(*pgconn.ConnectError)) || errors.As(err, new(*net.OpError)) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

// isFull reports whether the disk of an SQLite database is full.
func isFull(err error) bool {
	failed := (*sqlite.Error)(nil)
	return errors.As(err, &failed) && failed.Code()&0xff == sqlite3.SQLITE_FULL
}

// isConflict reports whether PostgreSQL has ended a transaction because of another one: it was the
// victim of a deadlock, or could not be serialized. It has changed nothing.
func isConflict(err error) bool {
	var failed *pgconn.PgError
	return errors.As(err, &failed) && (failed.Code == "40001" || failed.Code == "40P01")
}
