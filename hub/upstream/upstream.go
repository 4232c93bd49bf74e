// Package upstream reads layers that the hub's registry does not store, because another registry
// has them.
//
// A repository may serve a layer only from the registries that the layer's own image was added
// from. Other registries that have the digest for other repositories are not read: a manifest that
// names a digest does not prove that its author may read the bytes. The hub reads with its own
// logins (package registries). It does not keep the logins with which users have added images.
//
// A layer is fetched once for all concurrent readers, into a file without a name in the hub's
// scratch directory. Readers get bytes as they arrive. They get the last byte only after the digest
// of the whole layer was checked, so a wrong layer ends as a broken transfer. A request for a small
// range fetches the whole layer, too. The layer is kept for a minute after its last reader has
// gone, because requests for other ranges may follow.
//
// Package pullthrough reads blobs of other registries in the same way (Pass), with a login of its
// caller's choice. These blobs are kept longer: their image may be ingested soon, which reads them
// once more (Passed).
//
// The file needs as much disk space as the layer. So a layer is fetched only while there is room
// (Config.Room). Otherwise any reader could fill the disk by requesting layers.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"lighter/hub/catalog"
	"lighter/hub/pull"
	"lighter/hub/registries"
	"lighter/hub/registry"
)

// Config says what a Reader reads.
type Config struct {
	Catalog    *catalog.Catalog
	Registries *registries.Registries // from which layers are read
	Dir        string                 // of fetched layers
	// Room returns an error if the disk has no room for fetched layers.
	Room   func() error
	Bounds *Bounds
	Log    *slog.Logger
}

// Reader reads layers that the hub's registry does not store. It implements registry.Upstream, and
// is safe for concurrent use.
type Reader struct {
	config Config
	life   context.Context
	end    context.CancelFunc
	tasks  sync.WaitGroup // fetches

	*Bounds
	fetches map[place]*fetch // guarded by Bounds.mu
}

// place is a layer in a repository of another registry.
type place struct{ source, digest string }

var _ registry.Upstream = (*Reader)(nil)

// New returns a reader, whose fetches end with ctx. The caller calls Close.
func New(ctx context.Context, c Config) *Reader {
	r := &Reader{config: c, Bounds: c.Bounds, fetches: map[place]*fetch{}}
	r.life, r.end = context.WithCancel(ctx)
	return r
}

// Close ends the fetches.
func (r *Reader) Close() error {
	r.end()
	r.tasks.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.layers.drop(r)
	r.passed.drop(r)
	return nil
}

// Known implements registry.Upstream.
func (r *Reader) Known(ctx context.Context, repository, digest string) (int64, error) {
	places, err := r.places(ctx, repository, digest)
	if err != nil {
		return 0, err
	}
	return places[0].Size, nil
}

// places returns the repositories of other registries that a layer of a repository may be read
// from. If there are none, it returns an error.
func (r *Reader) places(ctx context.Context, repository, digest string) ([]catalog.Upstream, error) {
	places, err := r.config.Catalog.Upstreams(ctx, repository, digest)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", registry.ErrUnavailable, err)
	case len(places) == 0:
		return nil, registry.ErrNotFound
	}
	return places, nil
}

// Stat implements registry.Upstream.
func (r *Reader) Stat(ctx context.Context, repository, digest string) (size int64, err error) {
	err = r.first(ctx, repository, digest, func(u catalog.Upstream) error {
		source, err := r.Source(ctx, u.Repository, u.PlainHTTP)
		if err == nil {
			size, err = u.Size, source.Has(ctx, digest, u.Size)
		}
		return err
	})
	return size, err
}

// Open implements registry.Upstream.
func (r *Reader) Open(ctx context.Context, repository, digest string) (blob registry.Blob, err error) {
	err = r.first(ctx, repository, digest, func(u catalog.Upstream) error {
		open := func(ctx context.Context) (*pull.Source, error) { return r.Source(ctx, u.Repository, u.PlainHTTP) }
		blob, err = r.join(ctx, place{u.Repository, u.Digest}, u.Size, &r.layers, open)
		return err
	})
	return blob, err
}

// first calls try with the places of a layer until one succeeds.
func (r *Reader) first(ctx context.Context, repository, digest string, try func(catalog.Upstream) error) error {
	places, err := r.places(ctx, repository, digest)
	if err != nil {
		return err
	}
	var errs []error
	for _, u := range places {
		err := try(u)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		errs = append(errs, explain(u, err))
	}
	return errors.Join(errs...)
}

// explain returns an error for the hub's clients about a failed read from another registry. The
// error says what to do, and wraps registry.ErrUnavailable, ErrNotFound or ErrDenied.
func explain(u catalog.Upstream, err error) error {
	kind, advice := registry.ErrUnavailable, "try again when that registry answers"
	var failed *transport.Error
	switch {
	case errors.Is(err, registry.ErrNotFound):
		kind = registry.ErrNotFound
	case errors.As(err, &failed) && failed.StatusCode == http.StatusNotFound:
		kind = registry.ErrNotFound
	case errors.As(err, &failed) &&
		(failed.StatusCode == http.StatusUnauthorized || failed.StatusCode == http.StatusForbidden):
		kind, advice = registry.ErrDenied, "give the hub a login in a table [[registry]], or push the image to the hub"
	}
	if errors.Is(err, errNoRoom) {
		advice = "try again later"
	}
	if kind == registry.ErrNotFound {
		advice = "push the image to the hub from where it still is"
	}
	return &explained{kind, u.Repository, err, advice}
}

// explained is an error of another registry. Clients of the hub see only the status of that
// registry's answer: redirects have addresses and signatures that the clients must not see.
type explained struct {
	kind   error  // of package registry
	from   string // a repository
	err    error
	advice string // what to do
}

func (e *explained) Error() string { return e.text(e.err.Error()) }

// Public replaces Error for clients.
func (e *explained) Public() string {
	var failed *transport.Error
	var network net.Error // *url.Error is one
	var rest *registries.RestError
	switch {
	case errors.As(e.err, &rest):
		return e.text(rest.Error())
	case errors.As(e.err, &failed):
		return e.text(fmt.Sprintf("it answers %d %s", failed.StatusCode, http.StatusText(failed.StatusCode)))
	case errors.As(e.err, &network):
		return e.text("it cannot be reached")
	}
	return e.text(e.err.Error())
}

func (e *explained) Unwrap() []error { return []error{e.kind, e.err} }

func (e *explained) text(because string) string {
	return fmt.Sprintf("%v: the hub does not store this layer and reads it from %s: %s (%s)", e.kind, e.from, because,
		e.advice)
}

// Source opens a repository of another registry with the hub's own login for it, if there is one.
func (r *Reader) Source(ctx context.Context, repository string, plainHTTP bool) (*pull.Source, error) {
	return r.config.Registries.OpenRepository(ctx, repository, registries.Access{Own: true, PlainHTTP: plainHTTP})
}
