package database

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"
)

// Session runs statements, in a transaction or outside of one. In a statement, ? stands for an
// argument.
type Session struct {
	on interface {
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
		PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	}
	*Dialect
	observe Observer // nil: none
}

// bound returns a statement as the database gets it, and calls the observer.
func (s Session) bound(ctx context.Context, statement string, args []any) string {
	statement = s.bind(statement)
	if s.observe != nil {
		s.observe(ctx, statement, args)
	}
	return statement
}

// Exec runs a statement.
func (s Session) Exec(ctx context.Context, statement string, args ...any) error {
	_, err := s.on.ExecContext(ctx, s.bound(ctx, statement, args), args...)
	return mark(err)
}

// ExecCount runs a statement and returns the number of rows that it has changed.
func (s Session) ExecCount(ctx context.Context, statement string, args ...any) (int64, error) {
	return count(s.on.ExecContext(ctx, s.bound(ctx, statement, args), args...))
}

// count returns the number of rows that a statement has changed.
func count(done sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, mark(err)
	}
	return done.RowsAffected()
}

// Change runs a statement. The error is ifNone if the statement has changed no row.
func (s Session) Change(ctx context.Context, ifNone error, statement string, args ...any) error {
	if n, err := s.ExecCount(ctx, statement, args...); err != nil || n == 0 {
		return cmp.Or(err, ifNone)
	}
	return nil
}

// Prepare prepares a query that runs many times. The caller closes it. Errors of the prepared query
// are the driver's own.
func (s Session) Prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	prepared, err := s.on.PrepareContext(ctx, s.bound(ctx, query, nil))
	return prepared, mark(err)
}

// Rows runs a query and yields the rows of its result. fields returns pointers to where the columns
// of a row are stored, in their order. An error is the last element.
func Rows[T any](
	ctx context.Context, in Session, fields func(*T) []any, query string, args ...any,
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		result, err := in.on.QueryContext(ctx, in.bound(ctx, query, args), args...)
		if err == nil {
			defer result.Close()
			for result.Next() {
				var row T
				if err = result.Scan(fields(&row)...); err != nil {
					break
				}
				if !yield(row, nil) {
					return
				}
			}
			err = cmp.Or(err, result.Err())
		}
		if err != nil {
			yield(*new(T), fmt.Errorf("read the database: %w", mark(err)))
		}
	}
}

// List runs a query and returns the rows of its result. fields is as for Rows.
func List[T any](
	ctx context.Context, in Session, fields func(*T) []any, query string, args ...any,
) (all []T, err error) {
	for row, err := range Rows(ctx, in, fields, query, args...) {
		if err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, nil
}

// Map runs a query and returns the rows of its result by their keys. fields is as for Rows.
func Map[K comparable, V any](
	ctx context.Context, in Session, fields func(*K, *V) []any, query string, args ...any,
) (map[K]V, error) {
	type entry struct {
		key   K
		value V
	}
	all := map[K]V{}
	for e, err := range Rows(ctx, in, func(e *entry) []any { return fields(&e.key, &e.value) }, query, args...) {
		if err != nil {
			return nil, err
		}
		all[e.key] = e.value
	}
	return all, nil
}

// Get runs a query and returns the first row of its result. fields is as for Rows. The error is
// ErrNotFound if there is no row.
func Get[T any](
	ctx context.Context, in Session, fields func(*T) []any, query string, args ...any,
) (row T, err error) {
	err = in.on.QueryRowContext(ctx, in.bound(ctx, query, args), args...).Scan(fields(&row)...)
	if errors.Is(err, sql.ErrNoRows) {
		return row, ErrNotFound
	}
	if err != nil {
		return row, fmt.Errorf("read the database: %w", mark(err))
	}
	return row, nil
}

// Value returns the fields of a row with one column.
func Value[T any](v *T) []any { return []any{v} }

// KeyValue returns the fields of a row with a key and one more column.
func KeyValue[K, V any](k *K, v *V) []any { return []any{k, v} }

// Places returns n rows of k placeholders: (?,?),(?,?) for 2 and 2.
func Places(n, k int) string {
	row := "(" + strings.TrimSuffix(strings.Repeat("?,", k), ",") + ")"
	return strings.TrimSuffix(strings.Repeat(row+",", n), ",")
}

// Null is a field of a column that may be NULL.
type Null[T any] = sql.Null[T]

// Stamp returns the field of a column with a time, in milliseconds since 1970; 0 is the zero time.
func Stamp(t *time.Time) sql.Scanner { return stamp{t} }

type stamp struct{ *time.Time }

// Scan implements sql.Scanner.
func (s stamp) Scan(stored any) error {
	milliseconds, ok := stored.(int64)
	if !ok {
		return fmt.Errorf("scan time: %T, want int64", stored)
	}
	if milliseconds != 0 {
		*s.Time = time.UnixMilli(milliseconds)
	}
	return nil
}

// Milliseconds returns the field of a column with a duration in milliseconds.
func Milliseconds(d *time.Duration) sql.Scanner { return milliseconds{d} }

type milliseconds struct{ *time.Duration }

// Scan implements sql.Scanner.
func (m milliseconds) Scan(stored any) error {
	n, ok := stored.(int64)
	if !ok {
		return fmt.Errorf("scan duration: %T, want int64", stored)
	}
	*m.Duration = time.Duration(n) * time.Millisecond
	return nil
}
