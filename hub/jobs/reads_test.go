package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"lighter/hub/away"
	"lighter/hub/jobs"
	"lighter/wire"
)

var errStore = away.New("the store is not available")

// A job that cannot read an object has failed after three attempts during which the object's store
// works. Attempts while the store does not work do not count, nor do those that end with another
// error of a store. An error that is not to be repeated stays as it is.
func TestReadsAreBounded(t *testing.T) {
	const works, fails, write, final = "works", "fails", "write", "final"
	long := strings.Repeat(fails+" ", 5)
	for _, c := range []struct {
		attempts string // what each attempt meets; the next one succeeds
		want     string // state of the job
		used     int    // attempts in all
	}{
		{works + " " + works + " " + works + " " + works, wire.JobFailed, 3},
		{works + " " + works, wire.JobDone, 3},
		{long, wire.JobDone, 6},
		{works + " " + long + works + " " + works, wire.JobFailed, 8},
		{strings.Repeat(write+" ", 5), wire.JobDone, 6},
		{final, wire.JobFailed, 1},
	} {
		t.Run(c.attempts, func(t *testing.T) {
			t.Parallel()
			store := openJobs(t)
			q := jobs.NewRunner().Queue(store, "a", slog.New(slog.DiscardHandler))
			q.RetryDelay, q.ReadPauses = time.Millisecond, []time.Duration{time.Millisecond, time.Millisecond}
			meets, used := strings.Fields(c.attempts), 0
			q.Add(jobs.Kind{Name: kind, AtOnce: 1, Run: func(context.Context, *jobs.Running) error {
				if used++; used > len(meets) {
					return nil
				}
				read := &away.ReadError{Object: "blob 1", Remedy: "restore it", Err: errors.New("no bytes"),
					Works: func(context.Context) error {
						if meets[used-1] == fails {
							return errors.New("no connection")
						}
						return nil
					}}
				switch meets[used-1] {
				case write:
					return fmt.Errorf("write: %w", errStore)
				case final:
					return away.Final(fmt.Errorf("%w: %w", errStore, read))
				}
				return fmt.Errorf("layer 1: %w: %w", errStore, read)
			}})
			number := add(t, store, "a", "", 0)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- q.Run(ctx) }()
			j := await(t, store, number, c.want)
			cancel()
			<-done
			if used != c.used {
				t.Errorf("%d attempts, want %d", used, c.used)
			}
			if c.want == wire.JobFailed && c.used > 1 &&
				j.Error != "blob 1 cannot be read, although other files can: restore it: no bytes" {
				t.Errorf("the reason is %q, want the object, what to do, and the cause", j.Error)
			}
		})
	}
}
