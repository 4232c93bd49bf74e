package database

import (
	"strconv"
	"strings"

	"github.com/pressly/goose/v3"
)

// Dialect has the parts of statements that differ between the databases. A field that is empty adds
// nothing to a statement.
type Dialect struct {
	Clock string // an expression: the database's time, in milliseconds since 1970
	Lock  string // the end of a query that locks its rows until the transaction ends
	Skip  string // the end of a query that locks its rows, and skips rows that others have locked
	Share string // the end of a query whose rows nobody changes before the transaction ends
	// LockName is a statement that locks a name, its argument, until the transaction ends: the name
	// of a row that does not exist yet, say. Empty: there is only one transaction at a time.
	LockName string
	// Integrity is a query that returns a line for each damage of the database's files, or the line
	// ok. Empty: the database checks its files itself.
	Integrity string

	goose    goose.Dialect
	dir      string // of its migrations
	numbered bool   // arguments are $1, $2, … instead of ?
}

var (
	sqliteDialect = &Dialect{goose: goose.DialectSQLite3, dir: "sqlite",
		Clock: `CAST(unixepoch('subsec') * 1000 AS INTEGER)`, Integrity: `PRAGMA integrity_check(20)`}
	postgresDialect = &Dialect{goose: goose.DialectPostgres, dir: "postgres", numbered: true,
		Clock: `CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)`,
		Lock:  ` FOR UPDATE`,
		Skip:  ` FOR UPDATE SKIP LOCKED`, Share: ` FOR SHARE`,
		LockName: `SELECT pg_advisory_xact_lock(hashtextextended(concat_ws(' ', current_schema(), ?::text), 0))`}
)

// bind returns a statement with the database's placeholders.
func (d *Dialect) bind(statement string) string {
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
