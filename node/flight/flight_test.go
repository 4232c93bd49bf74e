package flight_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"lighter/node/flight"
)

// Callers share a call while it runs. After its end, the next caller starts a new call.
func ExampleGroup() {
	var group flight.Group[string]
	fetch := func(_ context.Context, c *flight.Call) error {
		c.Begin()
		fmt.Println("fetched")
		return nil
	}
	call := group.Join("index", fetch)
	if err := call.WaitBegun(context.Background()); err == nil {
		fmt.Println(call.Wait(context.Background()))
	}
	// Output:
	// fetched
	// <nil>
}

// blocked returns a function for Join that ends with a value from result, or when it is cancelled.
func blocked(result <-chan error, runs *atomic.Int32) func(context.Context, *flight.Call) error {
	return func(ctx context.Context, c *flight.Call) error {
		runs.Add(1)
		c.Begin()
		select {
		case err := <-result:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// A call goes on while a caller waits, and is cancelled when the last caller stops waiting. The
// next Join starts a new call.
func TestCallIsCancelledWithItsLastWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var group flight.Group[int]
		result := make(chan error)
		var runs atomic.Int32
		run := blocked(result, &runs)
		cancelled, cancel := context.WithCancel(t.Context())
		first, second, other := group.Join(1, run), group.Join(1, run), group.Join(2, run)
		if first != second || first == other {
			t.Error("want one call for each key")
		}
		cancel()
		if err := first.Wait(cancelled); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled waiter got %v, want %v", err, context.Canceled)
		}
		if again := group.Join(1, run); again != second {
			t.Error("the call ended although a caller still waits, want it to go on")
		} else if err := again.Wait(cancelled); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled waiter got %v, want %v", err, context.Canceled)
		}
		if err := second.Wait(cancelled); !errors.Is(err, context.Canceled) {
			t.Errorf("the last waiter got %v, want %v", err, context.Canceled)
		}
		synctest.Wait() // until the cancelled call has ended, so that it receives no result
		if fresh := group.Join(1, run); fresh == second {
			t.Error("Join returned a call that was cancelled, want a new call")
		} else {
			go func() { result <- nil; result <- nil }()
			if err := errors.Join(fresh.Wait(t.Context()), other.Wait(t.Context())); err != nil || runs.Load() != 3 {
				t.Errorf("%d runs, want 3: %v", runs.Load(), err)
			}
		}
		if err := second.Wait(t.Context()); !errors.Is(err, flight.ErrNoWaiter) {
			t.Errorf("the cancelled call returned %v, want %v", err, flight.ErrNoWaiter)
		}
	})
}

// WaitBegun returns the call's error only if the call failed before its result began to arrive.
func TestWaitBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var group flight.Group[int]
		bad := errors.New("bad")
		never := group.Join(1, func(context.Context, *flight.Call) error { return bad })
		if err := never.WaitBegun(t.Context()); err != bad {
			t.Errorf("a call that failed before its result began: got %v, want %v", err, bad)
		}
		begun := group.Join(1, func(_ context.Context, c *flight.Call) error {
			c.Begin()
			c.Begin()
			return bad
		})
		if err := begun.Err(); err != nil {
			t.Errorf("Err of a running call: got %v, want none", err)
		}
		synctest.Wait()
		if err := begun.Err(); err != bad {
			t.Errorf("got %v, want %v", err, bad)
		}
		if err := begun.WaitBegun(t.Context()); err != nil {
			t.Errorf("a call that failed after its result began: got %v, want no error", err)
		}
		if err := begun.Wait(t.Context()); err != bad {
			t.Errorf("got %v, want %v", err, bad)
		}
	})
}

// After Keep, a call continues without waiters. If all waiters have left, Keep returns false.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var group flight.Group[int]
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		for _, keepsFirst := range []bool{true, false} { // whether Keep is called before the last waiter leaves
			keep, kept, end := make(chan struct{}), make(chan bool, 1), make(chan struct{})
			call := group.Join(1, func(ctx context.Context, c *flight.Call) error {
				<-keep
				kept <- c.Keep()
				<-end
				return context.Cause(ctx)
			})
			if keepsFirst {
				close(keep)
				synctest.Wait()
			}
			if err := call.Wait(cancelled); !errors.Is(err, context.Canceled) {
				t.Errorf("a cancelled waiter got %v, want %v", err, context.Canceled)
			}
			if !keepsFirst {
				close(keep)
			}
			if got := <-kept; got != keepsFirst {
				t.Errorf("Keep returned %t, want %t", got, keepsFirst)
			}
			close(end)
			if err := call.Wait(t.Context()); (err == nil) != keepsFirst {
				t.Errorf("kept: %t; the call returned %v, want an error only if it was not kept", keepsFirst, err)
			}
		}
	})
}
