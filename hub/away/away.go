// Package away has the mark of errors which say that a store of the hub is not available: its
// database, its bucket, or the storage of its registry. Each store marks its errors (New). A job
// that ends with such an error runs again later, and a request is answered with status 503.
//
// A mark is about one request. A bucket, for example, may fail to read a single object. The stores
// have methods IsAway, which also ask whether the store answers now. If the store answers, only the
// object cannot be read, and waiting does not help (Final). Jobs wait nevertheless, as a store may
// answer and be full. Only a ReadError ends a job, after a few attempts during which the store can
// write and read something else.
package away

import (
	"context"
	"errors"
	"slices"
	"time"

	"lighter/sleep"
)

// New returns an error that marks the errors which wrap it.
func New(text string) error { return &mark{text} }

type mark struct{ text string }

func (m *mark) Error() string { return m.text }
func (m *mark) Away() bool    { return true }

// Is reports whether an error is marked: whether an error in its tree has a method Away that
// returns true. If that method returns false, the errors below it do not count.
func Is(err error) bool {
	switch e := err.(type) {
	case interface{ Away() bool }:
		return e.Away()
	case interface{ Unwrap() error }:
		return Is(e.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), Is)
	}
	return false
}

// Text returns the text of an error's mark, which names the store, or "" if the error is not marked
// by New.
func Text(err error) string {
	switch e := err.(type) {
	case *mark:
		return e.text
	case interface{ Away() bool }:
		return ""
	case interface{ Unwrap() error }:
		return Text(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if text := Text(err); text != "" {
				return text
			}
		}
	}
	return ""
}

// Final wraps an error so that it is not marked: the operation would fail again, although the store
// answers.
func Final(err error) error { return &final{err} }

type final struct{ error }

func (f *final) Unwrap() error { return f.error }
func (f *final) Away() bool    { return false }

// Confirm wraps an error after a store was asked, and did not answer. The store may come back
// before it is asked again about the same error, which does not make it an error of the object.
func Confirm(err error) error { return &confirmed{err} }

// IsConfirmed reports whether an error was wrapped by Confirm.
func IsConfirmed(err error) bool { return errors.As(err, new(*confirmed)) }

type confirmed struct{ error }

func (c *confirmed) Unwrap() error { return c.error }

// Store is a store of the hub that can be asked whether it answers now. An error that is not about
// this store does not say that it is away.
type Store interface {
	IsAway(ctx context.Context, err error) bool
}

// IsStill reports whether an error says that a store of the hub is away, and the store does not
// answer now either, or did not when it was asked before. If it answers, the error is about what
// was read. database marks the errors of the hub's database, which is not asked. Another registry
// that has the blob of a layer is no store of the hub: it may be away for good.
func IsStill(ctx context.Context, err, database error, stores ...Store) bool {
	return IsConfirmed(err) || errors.Is(err, database) ||
		slices.ContainsFunc(stores, func(s Store) bool { return s.IsAway(ctx, err) })
}

// Bounds of Retry.
const (
	tries = 3                      // calls of read in a round; there are two rounds at most
	pause = 200 * time.Millisecond // after each call that fails with a marked error
)

// Retry calls read, which reads from stores, until it succeeds, a few times at most. It repeats a
// call that fails with a marked error, because the error may be about one request only. If isAway
// then reports that the store answers, the store may have come back after the last call. So Retry
// starts over once, after any error. If the store answers after the second round, too, the error is
// one of the object. If the store is away, the error is confirmed.
func Retry[T any](
	ctx context.Context, isAway func(context.Context, error) bool, read func() (T, error),
) (value T, err error) {
	for range 2 {
		for range tries {
			if value, err = read(); !Is(err) || !sleep.For(ctx, pause) {
				break
			}
		}
		if err == nil || ctx.Err() != nil {
			break
		}
		if isAway(ctx, err) {
			return value, Confirm(err)
		}
	}
	return value, err
}
