package origin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/format/trace"
	"lighter/store"
	"lighter/wire"
	"lighter/wire/client"
)

// FetchUnit implements store.UnitSource.
func (f *Failover) FetchUnit(ctx context.Context, u chunk.Unit, take func(store.Answer) error) error {
	return f.fetch(ctx, func(domain string) string { return wire.UnitPath(domain, u) }, take)
}

// Fetch implements store.Source. The answer is any unit that holds the chunk.
func (f *Failover) Fetch(ctx context.Context, ref chunk.Ref, take func(store.Answer) error) error {
	return f.fetch(ctx, func(domain string) string { return wire.ChunkPath(domain, ref.ID) }, take)
}

func (f *Failover) fetch(ctx context.Context, path func(domain string) string, take func(store.Answer) error) error {
	return f.try(ctx, thorough, func(ctx context.Context, o *origin, others int) error {
		late := fmt.Errorf("hub %s: no unit within %s", o.url, f.timeout.unit)
		ctx, cancel := context.WithTimeoutCause(ctx, f.timeout.unit, late)
		defer cancel()
		r := request{path: path(o.client.Domain()), patience: patience{f.timeout.last, f.timeout.last}}
		if others > 0 {
			r.patience = patience{f.timeout.stall, f.timeout.stall}
		}
		return o.get(ctx, r, func(a store.Answer) error {
			a.Decode = decodeUnit
			return take(a)
		})
	})
}

func decodeUnit(encoded []byte) (store.Batch, error) { return pack.DecodeUnit(encoded) }

// Index passes the plain bytes of an index to take, from one origin after the other until take
// returns nil. If the answer is wrong, take returns an error that wraps a *chunk.InvalidError;
// any other error of take ends Index.
func (f *Failover) Index(ctx context.Context, tree chunk.ID, take func(plain io.Reader) error) error {
	return f.try(ctx, thorough, func(ctx context.Context, o *origin, others int) error {
		r := request{path: wire.IndexPath(o.client.Domain(), tree), patience: f.indexPatience(others)}
		return o.getCompressed(ctx, r, func(plain io.Reader) error {
			o.connectForStart()
			if err := take(plain); err != nil {
				return err
			}
			o.connectForStart() // a long transfer outlives idle connections
			return nil
		})
	})
}

// Locations passes the plain bytes of a tree's locations to take, as Index does. have is the
// SHA-256 of the plain bytes that the caller has, or zero. If the origin has the same bytes,
// Locations returns nil and does not call take. Locations are a hint, which may be requested again
// at any time. So an origin that fails to give them is not passed over.
func (f *Failover) Locations(ctx context.Context, tree, have chunk.ID, take func(plain io.Reader) error) error {
	etag := ""
	if !have.IsZero() {
		etag = `"` + have.String() + `"`
	}
	return f.try(ctx, thorough, func(ctx context.Context, o *origin, others int) error {
		r := request{path: wire.LocationsPath(o.client.Domain(), tree), etag: etag, patience: f.indexPatience(others)}
		if err := o.getCompressed(ctx, r, take); err != nil {
			return hintError{err}
		}
		return nil
	})
}

func (f *Failover) indexPatience(others int) patience {
	if others > 0 {
		return patience{f.timeout.begin, f.timeout.stall}
	}
	return patience{f.timeout.last, f.timeout.last}
}

// Chain returns what is known of a chain. A pull waits for the answer. So an origin that is down is
// asked only as a probe, or after another origin has failed. All silent origins together get
// about lookupTimeout. The last origin gets lookupLongest if it is not silent (see Watch).
func (f *Failover) Chain(ctx context.Context, chain string) (*wire.Chain, error) {
	return answer(ctx, f, (*client.Client).Chain, chain)
}

// Manifest returns what is known of the image with a manifest. It waits as Chain does.
func (f *Failover) Manifest(ctx context.Context, digest string) (*wire.Manifest, error) {
	return answer(ctx, f, (*client.Client).Manifest, digest)
}

// Soon returns when an image that is pending will be ready. It waits as Chain does.
func (f *Failover) Soon(ctx context.Context, digest string) (*wire.Soon, error) {
	return answer(ctx, f, (*client.Client).Soon, digest)
}

// answer looks something up by its digest.
func answer[T any](ctx context.Context, f *Failover,
	ask func(c *client.Client, ctx context.Context, digest string) (*T, error), digest string) (found *T, err error) {
	err = f.lookup(ctx, func(ctx context.Context, c *client.Client) (err error) {
		found, err = ask(c, ctx, digest)
		return err
	})
	return found, err
}

func (f *Failover) lookup(ctx context.Context, ask func(ctx context.Context, c *client.Client) error) error {
	deadline := time.Now().Add(f.timeout.lookup)
	return f.try(ctx, quick, func(ctx context.Context, o *origin, others int) error {
		silent := max(time.Until(deadline), f.timeout.lookup/4) / time.Duration(others+1)
		heard, longest := o.dialer.lastReceived, lookupLongest
		if others > 0 {
			longest = silent
		}
		if !o.isUp() { // a hub that hangs still takes connections
			heard = o.dialer.received.at
		}
		ctx, giveUp := context.WithCancelCause(ctx)
		defer giveUp(nil)
		stop := Watch(heard, silent, longest, giveUp)
		defer stop()
		done := o.dialer.expectPair()
		defer done()
		ctx, trip := store.Timed(ctx)
		err := ask(ctx, o.client)
		if err == nil || errors.Is(err, chunk.ErrNotFound) { // other errors often come from a proxy
			o.path.addRoundTrip(trip.Duration())
		}
		if err != nil && context.Cause(ctx) != nil {
			return fmt.Errorf("hub %s: %w", o.url, context.Cause(ctx))
		}
		return err
	})
}

// Tree returns the statement of a chain's tree. A hub makes the tree first if needed.
func (f *Failover) Tree(ctx context.Context, chain string) (answer *index.Statement, err error) {
	err = f.try(ctx, thorough, func(ctx context.Context, o *origin, others int) (err error) {
		ctx, cancel := share(ctx, others)
		defer cancel()
		answer, err = o.client.Tree(ctx, chain)
		return err
	})
	return answer, err
}

// Images returns the images of one name.
func (f *Failover) Images(ctx context.Context, name string) (answer []wire.Image, err error) {
	err = f.try(ctx, thorough, func(ctx context.Context, o *origin, others int) (err error) {
		ctx, cancel := share(ctx, others)
		defer cancel()
		answer, err = o.client.Images(ctx, name)
		return err
	})
	return answer, err
}

// AllImages returns the images of all names, sorted by name. limit bounds the answer, in bytes.
// Mirrors do not have the list.
func (f *Failover) AllImages(ctx context.Context, limit int64) (answer []wire.Image, err error) {
	err = f.try(ctx, thorough, func(ctx context.Context, o *origin, others int) (err error) {
		ctx, cancel := share(ctx, others)
		defer cancel()
		answer, err = o.client.AllImages(ctx, limit)
		return err
	})
	return answer, err
}

// RegistryObject passes a manifest or a small blob of a hub's registry (kind:
// wire.RegistryManifests, wire.RegistryBlobs) to take, from one origin after the other until take
// returns nil. If the answer is wrong, take returns an error that wraps a *chunk.InvalidError.
// Mirrors have no registry.
func (f *Failover) RegistryObject(ctx context.Context, repository, kind, digest string,
	take func([]byte) error) error {
	return f.try(ctx, thorough, func(ctx context.Context, o *origin, others int) error {
		ctx, cancel := share(ctx, others)
		defer cancel()
		b, err := o.client.RegistryObject(ctx, repository, kind, digest)
		if err != nil {
			return err
		}
		return take(b)
	})
}

// RegistryBlob passes a blob of a hub's registry to take, from one origin after the other until
// take returns nil. from returns the offset of the first byte that the caller still needs. The body
// begins at this offset or at 0 (at). If the answer is wrong, take returns an error that wraps a
// *chunk.InvalidError; any other error of take ends RegistryBlob. Mirrors have no registry. The hub
// may read the blob from another registry, so an origin that fails to give it is not passed over.
func (f *Failover) RegistryBlob(ctx context.Context, repository, digest string, from func() int64,
	take func(at int64, body io.Reader) error) error {
	return f.try(ctx, thorough, func(ctx context.Context, o *origin, _ int) error {
		err := o.registryBlob(ctx, repository, digest, from(), f.timeout.last, take)
		if err != nil && !errors.As(err, new(callerError)) {
			return hintError{err}
		}
		return err
	})
}

// registryBlob passes a blob to take. patience is how long each minProgress bytes may take.
func (o *origin) registryBlob(ctx context.Context, repository, digest string, from int64, patience time.Duration,
	take func(at int64, body io.Reader) error) error {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	body, at, err := o.client.RegistryBlob(ctx, repository, digest, from)
	if err != nil {
		return err
	}
	defer body.Close()
	r := newProgressReader(body, patience, &o.bytes, func() {
		giveUp(fmt.Errorf("hub %s: less than %d bytes within %s", o.url, minProgress, patience))
	})
	defer r.timer.Stop()
	err = take(at, r)
	switch {
	case err == nil:
		return nil
	case r.err != nil:
		return fmt.Errorf("hub %s: read the answer: %w", o.url, causeOf(ctx, r.err))
	case errors.As(err, new(*chunk.InvalidError)):
		return fmt.Errorf("hub %s: %w", o.url, err)
	}
	return callerError{err}
}

// share gives an origin its share of the remaining time, or lastTimeout if ctx has no deadline.
// Each origin that may be asked after it gets as much.
func share(ctx context.Context, others int) (context.Context, context.CancelFunc) {
	left := lastTimeout * time.Duration(others+1)
	if deadline, ok := ctx.Deadline(); ok {
		left = time.Until(deadline)
	}
	return context.WithTimeout(ctx, left/time.Duration(others+1))
}

// SendTrace reports what a start has read of a tree to the first hub that takes it. Mirrors
// refuse it. Origins that are down are not asked, and no failure counts against an origin. A
// hub that finds the trace invalid decides for all. Otherwise the error is a refusal
// (client.Error.IsRefusal) only if all origins refuse.
func (f *Failover) SendTrace(ctx context.Context, tree chunk.ID, t trace.Trace) error {
	var failed, refused error // the last failure, and the last refusal
	for _, o := range f.all {
		if !o.isUp() {
			failed = o.skipped()
			continue
		}
		err := o.sendTrace(ctx, tree, t)
		var answer *client.Error
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case !errors.As(err, &answer) || !answer.IsRefusal():
			failed = err
		case answer.Status == http.StatusBadRequest || answer.Status == http.StatusRequestEntityTooLarge:
			return err
		default:
			refused = err
		}
	}
	if failed != nil {
		return failed
	}
	return refused
}

func (o *origin) sendTrace(ctx context.Context, tree chunk.ID, t trace.Trace) error {
	ctx, cancel := context.WithTimeout(ctx, traceTimeout)
	defer cancel()
	return o.client.SendTrace(ctx, tree, t)
}

// Origins returns the URLs of all origins in their order, without credentials.
func (f *Failover) Origins() (urls []string) {
	for _, o := range f.all {
		urls = append(urls, o.url)
	}
	return urls
}

// SendHeld sends one origin a report of the trees that this node has. The error is a refusal
// (client.Error.IsRefusal) if the origin takes no reports.
func (f *Failover) SendHeld(ctx context.Context, origin int, held wire.Held) (wire.Unknown, error) {
	o := f.all[origin]
	if !o.isUp() {
		return wire.Unknown{}, o.skipped()
	}
	ctx, cancel := context.WithTimeout(ctx, heldTimeout)
	defer cancel()
	return o.client.SendHeld(ctx, held)
}
