package catalog

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

// rows runs a query and yields the rows of its result. fields returns where the columns of a row
// are stored. An error is the last element.
func rows[T any](
	ctx context.Context, db session, fields func(*T) []any, query string, args ...any,
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		result, err := db.query(ctx, query, args...)
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
			err = mark(cmp.Or(err, result.Err()))
		}
		if err != nil {
			yield(*new(T), fmt.Errorf("read the catalog: %w", err))
		}
	}
}

// list runs a query and returns the rows of its result.
func list[T any](
	ctx context.Context, db session, fields func(*T) []any, query string, args ...any,
) (all []T, err error) {
	for row, err := range rows(ctx, db, fields, query, args...) {
		if err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, nil
}

// mapOf runs a query and returns the rows of its result by their keys.
func mapOf[K comparable, V any](
	ctx context.Context, db session, fields func(*K, *V) []any, query string, args ...any,
) (map[K]V, error) {
	type entry struct {
		key   K
		value V
	}
	all := map[K]V{}
	for e, err := range rows(ctx, db, func(e *entry) []any { return fields(&e.key, &e.value) }, query, args...) {
		if err != nil {
			return nil, err
		}
		all[e.key] = e.value
	}
	return all, nil
}

// get runs a query and returns the first row of its result. The error is ErrNotFound if there is
// none.
func get[T any](
	ctx context.Context, db session, fields func(*T) []any, query string, args ...any,
) (row T, err error) {
	err = db.queryRow(ctx, query, args...).Scan(fields(&row)...)
	if errors.Is(err, sql.ErrNoRows) {
		return row, ErrNotFound
	}
	if err != nil {
		return row, fmt.Errorf("read the catalog: %w", mark(err))
	}
	return row, nil
}

// value has the fields of a row with one column.
func value[T any](v *T) []any { return []any{v} }

// keyValue has the fields of a row with a key and one more column.
func keyValue[K, V any](k *K, v *V) []any { return []any{k, v} }

// exec runs a statement.
func exec(ctx context.Context, db session, statement string, args ...any) error {
	_, err := db.exec(ctx, statement, args...)
	return err
}

// change runs a statement. The error is none if it has changed no row.
func change(ctx context.Context, db session, none error, statement string, args ...any) error {
	done, err := db.exec(ctx, statement, args...)
	if err != nil {
		return err
	}
	if n, err := done.RowsAffected(); err != nil || n == 0 {
		return cmp.Or(err, none)
	}
	return nil
}

// places returns n rows of k placeholders: (?,?),(?,?).
func places(n, k int) string {
	row := "(" + strings.TrimSuffix(strings.Repeat("?,", k), ",") + ")"
	return strings.TrimSuffix(strings.Repeat(row+",", n), ",")
}

// Now returns the database's time. All times in the catalog are by its clock: those of the hub's
// processes may differ.
func (db *database) Now(ctx context.Context) (time.Time, error) {
	return get(ctx, db.read, func(t *time.Time) []any { return []any{stamp{t}} }, `SELECT `+db.read.clock)
}

// stamp scans a stored time; 0 is the zero time.
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

// milliseconds scans a stored duration.
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
