// Package upstream reads layers that the hub's registry does not store, because another registry
// has them.
//
// A repository may serve a layer only from the registries that the layer's own image was added
// from. Other registries that have the digest for other repositories are not read: a manifest that
// names a digest does not prove that its author may read the bytes. The hub reads with its own
// logins (Config.LoginFile). It does not keep the logins with which users have added images.
//
// A layer is fetched once for all concurrent readers, into a file without a name in the hub's
// scratch directory. Readers get bytes as they arrive. They get the last byte only after the digest
// of the whole layer was checked, so a wrong layer ends as a broken transfer. A request for a small
// range fetches the whole layer, too. The layer is kept for a minute after its last reader has
// gone, because requests for other ranges may follow.
//
// The file needs as much disk space as the layer. So a layer is fetched only while there is room
// (Config.Room). Otherwise any reader could fill the disk by requesting layers.
package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/semaphore"

	"lighter/hub/catalog"
	"lighter/hub/pull"
	"lighter/hub/registry"
	"lighter/wire"
)

const (
	// atOnce bounds the layers that are fetched at a time, for all domains. Further fetches wait.
	atOnce = 8
	// maxKept bounds the layers that are kept without a reader, of all domains.
	maxKept = 16
)

// Config says what a Reader reads.
type Config struct {
	Catalog   *catalog.Catalog
	Sources   []string // registries, HOST or HOST:PORT, that need no public address
	LoginFile string   // logins as in Docker's config.json; empty: none
	Dir       string   // of fetched layers
	// Room returns an error if the disk has no room for fetched layers.
	Room   func() error
	Bounds *Bounds
	Log    *slog.Logger
}

// Bounds bounds the layers that a process fetches at a time and keeps, for all its domains.
type Bounds struct {
	slots *semaphore.Weighted

	mu   sync.Mutex // guards the following, and the fetches of all readers
	kept []*fetch   // whole layers without readers, the oldest first
}

// NewBounds returns the bounds of a process.
func NewBounds() *Bounds { return &Bounds{slots: semaphore.NewWeighted(atOnce)} }

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
	r.kept = slices.DeleteFunc(r.kept, func(f *fetch) bool {
		if f.reader == r {
			f.forget()
		}
		return f.reader == r
	})
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
		blob, err = r.join(ctx, u)
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
		kind, advice = registry.ErrDenied, "give the hub a login in upstream_logins, or push the image to the hub"
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
	switch {
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
	ref, err := pull.ParseRepository(repository)
	if err != nil {
		return nil, err
	}
	login, err := r.login(ref.Context().RegistryStr())
	if err != nil {
		return nil, err
	}
	return pull.OpenSource(ctx, r.config.Sources, ref, wire.Add{PlainHTTP: plainHTTP, Username: login.Username,
		Password: login.Password, Token: login.IdentityToken, RegistryToken: login.RegistryToken})
}

// login returns the hub's login for a registry. It reads the file each time: it may have changed.
func (r *Reader) login(host string) (login authn.AuthConfig, err error) {
	if r.config.LoginFile == "" {
		return login, nil
	}
	b, err := os.ReadFile(r.config.LoginFile)
	if err != nil {
		return login, fmt.Errorf("read the hub's logins (upstream_logins): %w", err)
	}
	var file struct {
		Auths map[string]authn.AuthConfig `json:"auths"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return login, fmt.Errorf("parse the hub's logins (upstream_logins) in %s: %w", r.config.LoginFile, err)
	}
	for name, one := range file.Auths {
		name = strings.TrimPrefix(strings.TrimPrefix(name, "https://"), "http://")
		name, _, _ = strings.Cut(name, "/") // Docker Hub is https://index.docker.io/v1/
		if name == host || name == "docker.io" && host == "index.docker.io" {
			return one, nil
		}
	}
	return login, nil
}
