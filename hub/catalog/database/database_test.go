package database

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// open opens a new SQLite database with a table of numbers.
func open(t *testing.T) *DB {
	t.Helper()
	files := fstest.MapFS{"sqlite/00001_numbers.sql": {Data: []byte(`-- +goose Up
		CREATE TABLE numbers (n INTEGER PRIMARY KEY, at INTEGER NOT NULL);`)}}
	db, err := Open(t.Context(), Place{Source: filepath.Join(t.TempDir(), "test.db")}, files)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func TestBind(t *testing.T) {
	const statement = `SELECT n FROM numbers WHERE n IN (?,?) LIMIT ?`
	if got := sqliteDialect.bind(statement); got != statement {
		t.Errorf("SQLite gets %s, want %s", got, statement)
	}
	if got, want := postgresDialect.bind(statement), `SELECT n FROM numbers WHERE n IN ($1,$2) LIMIT $3`; got != want {
		t.Errorf("PostgreSQL gets %s, want %s", got, want)
	}
	if got, want := Places(2, 3), `(?,?,?),(?,?,?)`; got != want {
		t.Errorf("places %s, want %s", got, want)
	}
}

// All rows are inserted, with full statements and a shorter last one, except rows whose key exists.
func TestInserter(t *testing.T) {
	db := open(t)
	const rows = 2*RowsPerInsert + 50
	if err := db.Exec(t.Context(), "insert", `INSERT INTO numbers (n, at) VALUES (7, 0), (8, 0)`); err != nil {
		t.Fatal(err)
	}
	err := db.Update(t.Context(), "insert", func(tx Session) error {
		add := Inserter{TX: tx, Into: `numbers (n, at)`, Columns: 2, Key: `n`}
		for n := range rows {
			if err := add.Row(t.Context(), n, 1000); err != nil {
				return err
			}
		}
		err := add.Flush(t.Context())
		if add.Added != rows-2 {
			t.Errorf("%d rows were inserted, want %d", add.Added, rows-2)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	times, err := Map(t.Context(), db.Read, func(n *int, at *time.Time) []any { return []any{n, Stamp(at)} },
		`SELECT n, at FROM numbers`)
	if err != nil || len(times) != rows || !times[7].IsZero() || !times[9].Equal(time.UnixMilli(1000)) {
		t.Errorf("%d rows (%v), the times of 7 and 9 are %s and %s; want %d rows, the zero time and %s", len(times),
			err, times[7], times[9], rows, time.UnixMilli(1000))
	}
}

// A database is copied while it is written: the copy does not use the connection for writing, so
// writers do not wait for it. It has what was committed.
func TestCopyBesideAWriter(t *testing.T) {
	db := open(t)
	path := filepath.Join(t.TempDir(), "copy.db")
	if err := db.Exec(t.Context(), "insert", `INSERT INTO numbers (n, at) VALUES (1, 0)`); err != nil {
		t.Fatal(err)
	}
	err := db.Update(t.Context(), "insert", func(tx Session) error {
		if err := tx.Exec(t.Context(), `INSERT INTO numbers (n, at) VALUES (2, 0)`); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return db.CopyTo(ctx, path)
	})
	if err != nil {
		t.Fatal(err)
	}
	copied, err := Connect(Place{Source: path})
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	numbers, err := List(t.Context(), copied.Read, Value[int], `SELECT n FROM numbers ORDER BY n`)
	if err != nil || !slices.Equal(numbers, []int{1}) {
		t.Errorf("the copy has rows %v (%v), want the committed row 1", numbers, err)
	}
}

// A transaction that fails changes nothing, and its error names the operation. A committed one is
// observed.
func TestUpdate(t *testing.T) {
	db := open(t)
	var commits []string
	db.ObserveCommits(func(_ context.Context, what string, committed bool) {
		if committed {
			commits = append(commits, what)
		}
	})
	wrong := errors.New("wrong")
	insert := func(err error) func(tx Session) error {
		return func(tx Session) error {
			n, insertErr := tx.ExecCount(t.Context(), `INSERT INTO numbers (n, at) VALUES (?, ?)`, 1, 0)
			if n != 1 {
				t.Errorf("%d rows were inserted, want 1", n)
			}
			return errors.Join(insertErr, err)
		}
	}
	if err := db.Update(t.Context(), "count", insert(wrong)); !errors.Is(err, wrong) ||
		!strings.HasPrefix(err.Error(), "count: ") {
		t.Errorf("error %v, want that of the function, with the operation", err)
	}
	all := func() []int {
		t.Helper()
		all, err := List(t.Context(), db.Read, Value[int], `SELECT n FROM numbers`)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if n := all(); len(n) != 0 {
		t.Errorf("rows %v after a failed transaction, want none", n)
	}
	if err := db.Update(t.Context(), "count again", insert(nil)); err != nil {
		t.Fatal(err)
	}
	if n := all(); !slices.Equal(n, []int{1}) || !slices.Equal(commits, []string{"count again"}) {
		t.Errorf("rows %v, commits %q, want row 1 and the commit of \"count again\"", n, commits)
	}
	if err := db.Write.Change(t.Context(), wrong, `DELETE FROM numbers WHERE n = 2`); err != wrong {
		t.Errorf("a statement that changed nothing: error %v, want %v", err, wrong)
	}
	if _, err := Get(t.Context(), db.Read, Value[int], `SELECT n FROM numbers WHERE n = 2`); err != ErrNotFound {
		t.Errorf("a row that does not exist: error %v, want ErrNotFound", err)
	}
}

// The context of Outlast goes on for a time after its parent has ended. It ends when end is called.
func TestOutlast(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	longer, end := Outlast(ctx)
	cancel()
	if err := longer.Err(); err != nil {
		t.Errorf("the context has ended with its parent: %v", err)
	}
	end()
	if longer.Err() == nil {
		t.Error("the context has not ended with the call of end")
	}
	ctx, cancel = context.WithCancel(t.Context())
	longer, end = outlast(ctx, time.Millisecond)
	defer end()
	cancel()
	<-longer.Done()
}
