package away

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
)

var errAway = New("the store is not available")

// Wrapped and joined errors keep the mark. Final removes it.
func TestMark(t *testing.T) {
	other := errors.New("the disk is slow")
	wrapped := fmt.Errorf("read: %w: %w", errAway, other)
	for want, errs := range map[bool][]error{
		true: {errAway, wrapped, errors.Join(other, wrapped), errors.Join(Final(wrapped), errAway)},
		false: {nil, other, fmt.Errorf("read: %v", errAway), Final(errAway),
			fmt.Errorf("run: %w", Final(wrapped))},
	} {
		for _, err := range errs {
			if Is(err) != want {
				t.Errorf("%v is marked: %v, want %v", err, !want, want)
			}
		}
	}
	if got := Final(wrapped); got.Error() != wrapped.Error() || !errors.Is(got, other) {
		t.Errorf("Final returns %q, want all but the mark", got)
	}
}

// Retry ends with the first success. It starts a second round if the store answers after the first.
func TestRetry(t *testing.T) {
	other := errors.New("bad digest")
	for _, c := range []struct {
		what   string
		errs   []error // of the calls; nil afterwards
		isAway bool
		reads  int
		want   error
	}{
		{"success", nil, false, 1, nil},
		{"one request fails", []error{errAway}, false, 2, nil},
		{"the store is away", []error{errAway, errAway, errAway}, true, 3, errAway},
		{"it came back just now", []error{errAway, errAway, errAway}, false, 4, nil},
		{"one object fails", []error{errAway, errAway, errAway, errAway, errAway, errAway}, false, 6, errAway},
		{"damage", []error{other, other}, false, 2, other},
	} {
		synctest.Test(t, func(t *testing.T) {
			reads := 0
			_, err := Retry(t.Context(), func(context.Context, error) bool { return c.isAway }, func() (int, error) {
				if reads++; reads <= len(c.errs) {
					return 0, c.errs[reads-1]
				}
				return reads, nil
			})
			if reads != c.reads || !errors.Is(err, c.want) || IsConfirmed(err) != c.isAway {
				t.Errorf("%s: %d reads, %v (confirmed: %v), want %d, %v", c.what, reads, err, IsConfirmed(err), c.reads,
					c.want)
			}
		})
	}
}

// store is a store that is away if an error is its own, and it does not answer.
type store struct {
	mark    error
	answers bool
}

func (s store) IsAway(_ context.Context, err error) bool { return errors.Is(err, s.mark) && !s.answers }

// A store is still away if it does not answer now. A store that answers, or that the error is not
// about, is not.
func TestIsStill(t *testing.T) {
	database, bucket, registry := New("database"), New("bucket"), New("registry")
	stores := []Store{store{mark: bucket}, store{mark: registry, answers: true}}
	for err, want := range map[error]bool{database: true, bucket: true, registry: false, Confirm(registry): true,
		fmt.Errorf("read: %w", bucket): true, errors.New("damaged"): false} {
		if got := IsStill(t.Context(), err, database, stores...); got != want {
			t.Errorf("%v: got %t, want %t", err, got, want)
		}
	}
}
