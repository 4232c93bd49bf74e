// Package origin fetches what a node needs from its origins: hubs, and mirrors of them.
//
// A Failover asks one origin after the other until one gives the object. An origin that
// fails or hangs is passed over for a while, and preferred again once it answers.
//
// The package does not judge what it fetches: callers verify each answer as they read it,
// and an answer that they reject counts as a failure of its origin. It does not verify
// statements: callers do, with the pinned keys.
package origin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"lighter/format/chunk"
	"lighter/store"
	"lighter/wire"
	"lighter/wire/client"
)

// Failover asks several origins for the same objects, the preferred one first. It is safe for
// concurrent use.
//
// An error wraps chunk.ErrNotFound only if hubs say that they do not have the object. It is an
// *Unavailable if an origin that may have the object failed. It wraps a *chunk.InvalidError if an
// answer was wrong, or something else answered in a hub's place.
type Failover struct {
	all     []*origin
	timeout timeouts
}

var (
	_ store.UnitSource  = (*Failover)(nil)
	_ store.Connector   = (*Failover)(nil)
	_ store.Estimator   = (*Failover)(nil)
	_ store.Unavailable = (*Unavailable)(nil)
)

// timeouts are the constants of the same names; tests have shorter ones.
type timeouts struct{ stall, begin, last, unit, lookup time.Duration }

// New returns a Failover over at least one origin. It does not connect.
func New(log *slog.Logger, origins ...client.Options) (*Failover, error) {
	f := &Failover{timeout: timeouts{stallTimeout, beginTimeout, lastTimeout, unitTimeout, lookupTimeout}}
	seen := map[string]bool{}
	for _, options := range origins {
		o, err := newOrigin(log, options)
		if err != nil {
			return nil, err
		}
		if seen[o.url] {
			return nil, fmt.Errorf("hub %s is given twice", o.url)
		}
		seen[o.url] = true
		f.all = append(f.all, o)
	}
	return f, nil
}

// origin is a hub or a mirror, with what is known of it.
type origin struct {
	client *client.Client
	dialer dialer
	path   path
	wrong  wrongAnswers
	breaker
}

func newOrigin(log *slog.Logger, options client.Options) (*origin, error) {
	o := &origin{dialer: newDialer()}
	options.Dial, options.Log = o.dialer.dial, log
	var err error
	if o.client, err = client.New(options); err != nil {
		return nil, err
	}
	_, isPlain, _ := o.client.Registry()
	o.dialer.allowSpares = isPlain && options.Header.Get(wire.CopyHeader) == "" // spares are for starts, not for copies
	o.breaker.url, o.breaker.log = o.client.URL(), log
	return o, nil
}

// Unavailable means that no origin gave the object, and that an origin that may have it failed.
type Unavailable struct {
	Err    error
	After  time.Duration // how long until the first origin accepts requests again; 0: now
	missed bool          // see Missed
}

func (e *Unavailable) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Unavailable) Unwrap() error { return e.Err }

// RetryAfter implements store.Unavailable.
func (e *Unavailable) RetryAfter() time.Duration { return e.After }

// Missed implements store.Unavailable.
func (e *Unavailable) Missed() bool { return e.missed }

// effort says when try asks origins that are down.
type effort bool

const (
	quick    effort = false // only as a probe, or after another origin has failed: a pull waits
	thorough effort = true  // always, after the origins that are up
)

// ask sends one request to an origin. others is how many origins that are up can be asked after it.
type ask func(ctx context.Context, o *origin, others int) error

// try calls ask for one origin after the other until ask returns nil: first for the origins that
// are up or due for a probe, in their order, then for those that are down.
func (f *Failover) try(ctx context.Context, e effort, ask ask) error {
	var got outcome
	asked := make([]bool, len(f.all))
	for _, all := range []bool{false, true} {
		for i, o := range f.all {
			if asked[i] || all && e == quick && got.failed == nil {
				continue
			}
			a, ok := o.begin(all)
			if !ok {
				continue
			}
			asked[i] = true
			err := ask(ctx, o, f.othersUp(asked))
			if ctx.Err() == context.Canceled { // the caller has gone
				o.abandon(a)
				return context.Cause(ctx)
			}
			if errors.As(err, new(callerError)) {
				o.end(a, nil)
				return err
			}
			if o.end(a, got.add(err)); err == nil {
				return nil
			}
			if ctx.Err() != nil {
				return f.errorOf(got)
			}
		}
	}
	for i, o := range f.all {
		if !asked[i] {
			_ = got.add(o.skipped())
		}
	}
	return f.errorOf(got)
}

func (f *Failover) othersUp(asked []bool) (n int) {
	for i, o := range f.all {
		if !asked[i] && o.isUp() {
			n++
		}
	}
	return n
}

// outcome holds the first error of each kind.
type outcome struct{ failed, invalid, missing, refused error }

// add notes an origin's error and returns it if the origin is to blame.
func (o *outcome) add(err error) (blame error) {
	kind := &o.failed
	var refused *client.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, new(*chunk.InvalidError)):
		kind = &o.invalid
		if !errors.As(err, &refused) { // an origin that refuses one object may be a mirror that has others
			blame = err
		}
	case errors.Is(err, chunk.ErrNotFound):
		kind = &o.missing
	case errors.As(err, &refused) && refused.IsRefusal():
		kind = &o.refused
	default:
		blame = err
	}
	if *kind == nil {
		*kind = err
	}
	return blame
}

// errNoHub is the error of all requests if there are no origins: nobody has the object.
var errNoHub = fmt.Errorf("no hub is configured: %w", chunk.ErrNotFound)

// errorOf returns the error of a try that failed. A failure that may pass takes precedence over one
// that will not.
func (f *Failover) errorOf(got outcome) error {
	if got.failed != nil {
		after := maxPause
		for _, o := range f.all {
			after = min(after, o.busyFor())
		}
		return &Unavailable{Err: got.failed, After: after, missed: got.missing != nil || got.invalid != nil}
	}
	for _, err := range []error{got.invalid, got.missing, got.refused} {
		if err != nil {
			return err
		}
	}
	return errNoHub
}

// preferred returns the origin that would be asked next, or nil.
func (f *Failover) preferred() *origin {
	for _, o := range f.all {
		if o.isUp() {
			return o
		}
	}
	return nil
}

// Connect implements store.Connector. On a long path a request that has to wait for a new
// connection takes twice as long.
func (f *Failover) Connect(n int) {
	if o := f.preferred(); o != nil {
		o.dialer.connectIfWanted(n)
	}
}

// Estimate implements store.Estimator. The estimate comes from lookups, indexes and
// locations.
func (f *Failover) Estimate(string) (roundTrip time.Duration, bandwidth float64) {
	if o := f.preferred(); o != nil {
		return o.path.estimate()
	}
	return 0, 0
}

// LastReceived returns when an origin last took a connection or sent a byte; zero: never.
func (f *Failover) LastReceived() (at time.Time) {
	for _, o := range f.all {
		at = latest(at, o.dialer.lastReceived())
	}
	return at
}

// HasLoopback reports whether an origin is on this machine.
func (f *Failover) HasLoopback() bool { return len(f.Remote()) < len(f.all) }

// Remote returns the URLs of the origins that are not on this machine.
func (f *Failover) Remote() (urls []string) {
	for _, o := range f.all {
		if !o.client.IsLoopback() {
			urls = append(urls, o.url)
		}
	}
	return urls
}

// URL returns the origins' URLs for users, without credentials.
func (f *Failover) URL() string {
	return strings.Join(f.Origins(), ", ")
}

// Health returns what is known of each origin, in their order.
func (f *Failover) Health() (list []Health) {
	for _, o := range f.all {
		list = append(list, o.health())
	}
	return list
}
