package hub

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/store"
	"lighter/wire"
)

const (
	// stallTimeout is how long an origin may be silent while there is another to
	// ask, beginTimeout the same for the beginning of an index, for which a pull
	// waits, and lastTimeout where there is none.
	stallTimeout = 3 * time.Second
	beginTimeout = time.Second
	lastTimeout  = 15 * time.Second
	// lookupTimeout is what origins that are silent have for a look-up, all together: a
	// little more than the second after which a lost beginning of a connection is sent
	// again. One that is not, and is the last to ask, has lookupLongest.
	lookupTimeout = 1500 * time.Millisecond
	lookupLongest = 20 * time.Second
	// unitTimeout bounds one unit from the request to its last byte: at 4 MiB
	// a link that needs longer is as good as down.
	unitTimeout = 30 * time.Second
	// indexTimeout bounds an index, and locations.
	indexTimeout = 5 * time.Minute
)

// Origins are the hubs of one node, and mirrors of them, the preferred one first.
// What is asked for comes from the first that gives it: one that is silent, fails
// or gives something else is passed over, then asked less and less often, and
// preferred again once it answers. It is safe for concurrent use.
//
// Not to be had is only what hubs say they do not have (chunk.ErrNotFound). While
// one fails that may have it, the error is *Unavailable; where others answer in a hub's
// place, it wraps a *chunk.InvalidError.
type Origins struct {
	all []*origin

	// As the constants say, but in tests.
	stall, begin, last, unit, lookup time.Duration
}

// NewOrigins makes origins of at least one client.
func NewOrigins(log *slog.Logger, clients ...*Client) *Origins {
	s := &Origins{stall: stallTimeout, begin: beginTimeout, last: lastTimeout, unit: unitTimeout, lookup: lookupTimeout}
	for _, c := range clients {
		s.all = append(s.all, &origin{client: c, log: log})
	}
	return s
}

// Unavailable says that what was asked for is not to be had now: no origin gave
// it, and one that failed may have it.
type Unavailable struct {
	Err    error         // what went wrong
	After  time.Duration // all want to be left alone for so long
	missed bool
}

func (e *Unavailable) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Unavailable) Unwrap() error { return e.Err }

// RetryAfter is how long to wait at least before asking again.
func (e *Unavailable) RetryAfter() time.Duration { return e.After }

// Missed tells whether an origin that works does not give it.
func (e *Unavailable) Missed() bool { return e.missed }

// try asks one origin after the other until one answers: those that are up, in
// their order, and then the others, if anyway is set or one of the first has just
// failed. ask is told whether another would be asked next.
func (s *Origins) try(ctx context.Context, anyway bool, ask func(ctx context.Context, o *origin, others int) error) error {
	var got outcome
	asked := make([]bool, len(s.all))
	for _, all := range []bool{false, true} {
		for i, o := range s.all {
			if asked[i] || all && !anyway && got.failed == nil {
				continue
			}
			a, ok := o.begin(all)
			if !ok {
				continue
			}
			asked[i] = true
			err := ask(ctx, o, s.others(asked))
			if ctx.Err() == context.Canceled { // whoever asked has gone
				o.giveUp(a)
				return context.Cause(ctx)
			}
			if errors.As(err, new(ownError)) {
				o.end(a, nil)
				return err
			}
			if o.end(a, got.add(err)); err == nil {
				return nil
			}
			if ctx.Err() != nil {
				return got.result(s)
			}
		}
	}
	for i, o := range s.all {
		if !asked[i] {
			_ = got.add(o.leftAlone())
		}
	}
	return got.result(s)
}

// others tells how many origins are up that were not asked.
func (s *Origins) others(asked []bool) (n int) {
	for i, o := range s.all {
		if !asked[i] && o.isUp() {
			n++
		}
	}
	return n
}

// outcome is what the origins said, the first of each kind.
type outcome struct{ failed, invalid, missing, refused error }

// add notes an answer, and returns what the origin is to blame for.
func (o *outcome) add(err error) (blame error) {
	kind := &o.failed
	var said *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, new(*chunk.InvalidError)):
		kind = &o.invalid
		if !errors.As(err, &said) { // a mirror that lacks a file has others
			blame = err
		}
	case errors.Is(err, chunk.ErrNotFound):
		kind = &o.missing
	case errors.As(err, &said) && said.Refusal():
		kind = &o.refused
	default:
		blame = err
	}
	if *kind == nil {
		*kind = err
	}
	return blame
}

// result is the error of a try that failed. What may go better next time counts
// more than what will not.
func (o *outcome) result(s *Origins) error {
	if o.failed != nil {
		after := maxPause
		for _, one := range s.all {
			after = min(after, one.wait())
		}
		return &Unavailable{Err: o.failed, After: after, missed: o.missing != nil || o.invalid != nil}
	}
	for _, err := range []error{o.invalid, o.missing, o.refused} {
		if err != nil {
			return err
		}
	}
	return errors.New("there is no hub to ask")
}

var (
	_ store.UnitSource  = (*Origins)(nil)
	_ store.Connector   = (*Origins)(nil)
	_ store.Estimator   = (*Origins)(nil)
	_ store.Unavailable = (*Unavailable)(nil)
)

// Connect has connections made, n at most, to the origin that will be asked, for requests
// that are to come: on a long way a request that has to wait for one takes twice as long.
// It does not wait.
func (s *Origins) Connect(n int) {
	for _, o := range s.all {
		if o.isUp() {
			o.client.dialer.ready(n)
			return
		}
	}
}

// Estimate returns what was seen of the way to the origin that will be asked, for who has to
// know before he has asked it for much: of late the shortest time to an answer's first
// byte, and the most bytes a second with which an index or locations came. 0: not known.
func (s *Origins) Estimate() (roundTrip time.Duration, bandwidth float64) {
	for _, o := range s.all {
		if o.isUp() {
			return o.client.way.seen()
		}
	}
	return 0, 0
}

// FetchUnit passes the encoded unit to take, from one origin after the other until take
// returns nil. What take finds wrong with an answer it says with an error that
// wraps a *chunk.InvalidError; any other ends FetchUnit. The answer's Origin is the URL of the
// origin that gave it, without credentials.
func (s *Origins) FetchUnit(ctx context.Context, u chunk.Unit, take func(store.Answer) error) error {
	return s.small(ctx, func(c *Client) string { return wire.UnitPath(c.scope, u) }, take)
}

// Fetch does the same with some unit that holds the chunk.
func (s *Origins) Fetch(ctx context.Context, ref chunk.Ref, take func(store.Answer) error) error {
	return s.small(ctx, func(c *Client) string { return wire.ChunkPath(c.scope, ref.ID) }, take)
}

func (s *Origins) small(ctx context.Context, path func(*Client) string, take func(store.Answer) error) error {
	return s.try(ctx, true, func(ctx context.Context, o *origin, others int) error {
		ctx, cancel := context.WithTimeoutCause(ctx, s.unit, fmt.Errorf("hub %s: it took more than %s", o.client.URL(), s.unit))
		defer cancel()
		p := patience{s.last, s.last}
		if others > 0 {
			p = patience{s.stall, s.stall}
		}
		return o.client.object(ctx, path(o.client), "", p, &o.received, func(length int64, body io.Reader) error {
			trip := body.(*watched).trip
			return take(store.Answer{Origin: o.client.URL(), Length: length, Body: body, Decode: decodeUnit,
				RoundTrip: trip.took(), Reused: trip.reused.Load()})
		})
	})
}

func decodeUnit(encoded []byte) (store.Batch, error) { return pack.DecodeUnit(encoded) }

// Index has take read the plain bytes of an index, as Unit does with a unit.
func (s *Origins) Index(ctx context.Context, tree chunk.ID, take func(plain io.Reader) error) error {
	return s.large(ctx, func(c *Client) string { return wire.IndexPath(c.scope, tree) }, "", false, take)
}

// Locations does the same with the tree's locations, but does not call take if the
// origin has those whose plain bytes have the SHA-256 have, and says so; zero: the
// caller has none. Whoever fails to give them is asked for other things as before:
// they are a hint, which one may ask for again and again, and no pull shall miss a
// hub because of it.
func (s *Origins) Locations(ctx context.Context, tree, have chunk.ID, take func(plain io.Reader) error) error {
	etag := ""
	if !have.IsZero() {
		etag = `"` + have.String() + `"`
	}
	return s.large(ctx, func(c *Client) string { return wire.LocationsPath(c.scope, tree) }, etag, true, take)
}

func (s *Origins) large(ctx context.Context, path func(*Client) string, etag string, hint bool, take func(io.Reader) error) error {
	return s.try(ctx, true, func(ctx context.Context, o *origin, others int) error {
		ctx, cancel := context.WithTimeout(ctx, indexTimeout)
		defer cancel()
		p := patience{s.last, s.last}
		if others > 0 {
			p = patience{s.begin, s.stall}
		}
		err := o.client.compressed(ctx, path(o.client), etag, p, &o.received, func(plain io.Reader) error {
			if hint {
				return take(plain)
			}
			o.client.prepare()
			if err := take(plain); err != nil {
				return err
			}
			o.client.prepare() // of an index that took long they have expired
			return nil
		})
		if err != nil && hint {
			return hintError{err}
		}
		return err
	})
}

// Chain asks what is known of a chain. A pull waits for the answer, so origins
// that are down are not asked, and each of the others has its part of a second and a
// half. If there is no other to ask, one that is not silent (Watch) has twenty seconds.
func (s *Origins) Chain(ctx context.Context, chain string) (answer *wire.Chain, err error) {
	err = s.lookUp(ctx, func(ctx context.Context, c *Client) (err error) {
		answer, err = c.Chain(ctx, chain)
		return err
	})
	return answer, err
}

// Manifest asks what is known of the image with a manifest, as Chain does.
func (s *Origins) Manifest(ctx context.Context, digest string) (answer *wire.Manifest, err error) {
	err = s.lookUp(ctx, func(ctx context.Context, c *Client) (err error) {
		answer, err = c.Manifest(ctx, digest)
		return err
	})
	return answer, err
}

// lookUp asks what a pull waits for.
func (s *Origins) lookUp(ctx context.Context, ask func(ctx context.Context, c *Client) error) error {
	deadline := time.Now().Add(s.lookup)
	return s.try(ctx, false, func(ctx context.Context, o *origin, others int) (err error) {
		silent := max(time.Until(deadline), s.lookup/4) / time.Duration(others+1)
		heard, longest := o.client.dialer.heard, lookupLongest
		if others > 0 {
			longest = silent
		}
		if !o.isUp() { // a hub that hangs takes connections too
			heard = o.client.dialer.sent.at
		}
		ctx, giveUp := context.WithCancelCause(ctx)
		defer giveUp(nil)
		defer Watch(heard, silent, longest, giveUp)()
		defer o.client.dialer.twice()()
		if err = ask(ctx, o.client); err != nil && context.Cause(ctx) != nil {
			return fmt.Errorf("hub %s: %w", o.client.URL(), context.Cause(ctx))
		}
		return err
	})
}

// Heard tells when something came of one of the origins last: a connection that it
// took, or a byte; zero: never.
func (s *Origins) Heard() (at time.Time) {
	for _, o := range s.all {
		at = latest(at, o.client.dialer.heard())
	}
	return at
}

// Tree asks for the statement of a chain's tree, which a hub makes if need be.
func (s *Origins) Tree(ctx context.Context, chain string) (answer *index.Statement, err error) {
	err = s.try(ctx, true, func(ctx context.Context, o *origin, others int) (err error) {
		ctx, cancel := part(ctx, others)
		defer cancel()
		answer, err = o.client.Tree(ctx, chain)
		return err
	})
	return answer, err
}

// Images lists the images of one name.
func (s *Origins) Images(ctx context.Context, name string) (answer []wire.Image, err error) {
	err = s.try(ctx, true, func(ctx context.Context, o *origin, others int) (err error) {
		ctx, cancel := part(ctx, others)
		defer cancel()
		answer, err = o.client.Images(ctx, name)
		return err
	})
	return answer, err
}

// part gives an origin as much of the time that is left as each of the others
// that may be asked after it.
func part(ctx context.Context, others int) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	left := lastTimeout * time.Duration(others+1)
	if ok {
		left = time.Until(deadline)
	}
	return context.WithTimeout(ctx, left/time.Duration(others+1))
}

// Keys asks the one origin for its public keys, if they can be learned (Learnable).
func (s *Origins) Keys(ctx context.Context) (keys []ed25519.PublicKey, err error) {
	if err := s.Learnable(); err != nil {
		return nil, err
	}
	err = s.try(ctx, false, func(ctx context.Context, o *origin, others int) (err error) {
		ctx, cancel := part(ctx, others)
		defer cancel()
		keys, err = o.client.LocalKeys(ctx)
		return err
	})
	return keys, err
}

// Learnable says why no key can be learned from the origins, or nil. It can be from one on
// this machine, and from it alone: of several, whoever answers first would decide for all.
func (s *Origins) Learnable() error {
	if len(s.all) > 1 {
		return fmt.Errorf("hubs %s: no key is learned from one of several", s.URL())
	}
	if !s.Loopback() {
		return fmt.Errorf("hub %s is not on this machine", s.URL())
	}
	return nil
}

// Loopback tells whether one of the origins is on this machine.
func (s *Origins) Loopback() bool {
	for _, o := range s.all {
		if o.client.Loopback() {
			return true
		}
	}
	return false
}

// Remote lists the URLs of the origins that are not on this machine.
func (s *Origins) Remote() (urls []string) {
	for _, o := range s.all {
		if !o.client.Loopback() {
			urls = append(urls, o.client.URL())
		}
	}
	return urls
}

// URL names the origins for people, without credentials.
func (s *Origins) URL() string {
	var urls []string
	for _, o := range s.all {
		urls = append(urls, o.client.URL())
	}
	return strings.Join(urls, ", ")
}

// Health says what was seen of each origin, in their order.
func (s *Origins) Health() []Health {
	var list []Health
	for _, o := range s.all {
		list = append(list, o.health())
	}
	return list
}
