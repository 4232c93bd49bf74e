// Package registries is about the other registries that the hub reads, and pushes indexes to: what
// each is used for, and whose login is sent there. Package lighter/registries reaches them.
//
// It promises that a source (Registries.Source) is logged in with the hub's own login for its
// registry. An image that a user adds is read with that user's login, or without one; with the
// hub's own only if the registry's table allows it (Registry.Add). A Front never uses the hub's
// own.
//
// The metrics count requests by table, so users cannot add labels.
package registries

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"lighter/hub/pull"
	"lighter/registries"
	"lighter/registries/push"
	"lighter/wire/pattern"
)

// Registries are the other registries that the hub reads. It is safe for concurrent use.
type Registries struct {
	all     *registries.Registries
	adds    map[string]bool     // by the hosts of tables: Registry.Add
	attach  map[string][]string // by the hosts of tables: Registry.Attach
	metrics metrics

	mu     sync.Mutex // guards fronts
	fronts []*Front
}

// RestError says that a registry has asked the hub for a pause.
type RestError = registries.RestError

// New reads the files that the tables name. The caller calls Close.
func New(all []Registry, log *slog.Logger) (*Registries, error) {
	r := &Registries{adds: map[string]bool{}, attach: map[string][]string{}, metrics: newMetrics()}
	r.metrics.begin("")
	for _, one := range all {
		r.adds[one.Host], r.attach[one.Host] = one.Add, one.Attach
		r.metrics.begin(one.Host)
	}
	var err error
	r.all, err = registries.New(reached(all), log, r.metrics)
	return r, err
}

// Close closes idle connections.
func (r *Registries) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.fronts {
		f.to.CloseIdleConnections()
	}
	return r.all.Close()
}

// Access says as whom a repository is read.
type Access struct {
	// Login is the login of a user who wants an image. Without it, the repository is read without
	// a login, unless the configuration allows the hub's own (Registry.Add).
	Login authn.AuthConfig
	// Own: the repository is read with the hub's own login, if there is one. Login is not used.
	Own bool
	// Anonymous: the repository is read without a login, whatever the configuration allows.
	Anonymous bool
	// PlainHTTP: a user allows to read the registry without TLS.
	PlainHTTP bool
}

// Source opens HOST[:PORT]/PATH with the hub's own login, if there is one for it. The error wraps
// pull.ErrSource.
func (r *Registries) Source(ctx context.Context, repository string) (*pull.Source, error) {
	return r.OpenRepository(ctx, repository, Access{Own: true})
}

// OpenRepository opens HOST[:PORT]/PATH. The error wraps pull.ErrSource.
func (r *Registries) OpenRepository(ctx context.Context, repository string, a Access) (*pull.Source, error) {
	ref, err := pull.ParseRepository(repository)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", pull.ErrSource, err)
	}
	return r.Open(ctx, ref, a)
}

// Open logs in to the registry of ref. The error wraps pull.ErrSource.
func (r *Registries) Open(ctx context.Context, ref name.Reference, a Access) (*pull.Source, error) {
	mayAdd := r.adds[r.all.Table(ref.Context().RegistryStr()).Host]
	a.Own = a.Own || mayAdd && a.Login == (authn.AuthConfig{}) && !a.Anonymous
	s, err := r.all.Session(ref.Context(), registries.Access{Login: a.Login, Own: a.Own, PlainHTTP: a.PlainHTTP})
	if err == nil {
		err = s.LogIn(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", pull.ErrSource, err)
	}
	source := pull.NewSource(ref, s.Client(), s.PlainHTTP())
	source.Transfers = s.Transfers()
	return source, nil
}

// Attaches reports whether the images of a repository, HOST[:PORT]/PATH, get attached indexes.
func (r *Registries) Attaches(repository string) bool {
	host, path, _ := strings.Cut(repository, "/")
	return slices.ContainsFunc(r.attach[r.all.Table(host).Host], func(p string) bool { return pattern.Match(p, path) })
}

// AttachesAny reports whether the images of any repository get attached indexes.
func (r *Registries) AttachesAny() bool {
	for _, patterns := range r.attach {
		if len(patterns) > 0 {
			return true
		}
	}
	return false
}

// Attachable opens HOST[:PORT]/PATH for reading and for pushing, with the hub's own login, if there
// is one for it. The error wraps pull.ErrSource. It says so if the registry does not let the hub
// push there.
func (r *Registries) Attachable(ctx context.Context, repository string) (*pull.Source, *push.Destination, error) {
	source, to, err := r.attachable(ctx, repository)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", pull.ErrSource, err)
	}
	return source, to, nil
}

func (r *Registries) attachable(ctx context.Context, repository string) (*pull.Source, *push.Destination, error) {
	ref, err := pull.ParseRepository(repository)
	if err != nil {
		return nil, nil, err
	}
	s, err := r.all.Session(ref.Context(), registries.Access{Own: true, Write: true})
	if err == nil {
		err = s.LogIn(ctx)
	}
	in := ref.Context()
	if err == nil && s.PlainHTTP() {
		in, err = name.NewRepository(in.Name(), name.Insecure)
	}
	if err == nil {
		err = mayPush(ctx, s.Client(), in)
	}
	if err != nil {
		return nil, nil, err
	}
	to, err := push.New(in.Tag(name.DefaultTag), remote.WithTransport(s))
	source := pull.NewSource(ref, s.Client(), s.PlainHTTP())
	source.Transfers = s.Transfers()
	return source, to, err
}

// mayPush returns an error unless client may push to a repository.
func mayPush(ctx context.Context, client *http.Client, in name.Repository) error {
	err := push.May(ctx, client, in)
	var failed *transport.Error
	if errors.As(err, &failed) &&
		(failed.StatusCode == http.StatusUnauthorized || failed.StatusCode == http.StatusForbidden) {
		return fmt.Errorf("%w: attach needs the right to push to this repository: give it to the login in the table "+
			"[[registry]] of this host, or take the repository out of attach", err)
	}
	return err
}

// Client returns a client that is logged in to the registry HOST[:PORT] with the hub's own login,
// for a scope that is no repository's: registry:catalog:*. With an empty scope, it sends user and
// password themselves instead of a token, as other APIs of the host want them. The client sends
// requests for https://HOST[:PORT]/ without TLS if the registry has none, and if plainHTTP or the
// registry's table allows that. The error wraps pull.ErrSource.
func (r *Registries) Client(ctx context.Context, host, scope string, plainHTTP bool) (*http.Client, error) {
	s, err := r.all.RegistrySession(host, scope, plainHTTP)
	if err == nil {
		err = s.LogIn(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", pull.ErrSource, err)
	}
	return s.Client(), nil
}

// Anonymous returns a client that logs in nowhere, for other files than those of registries.
// plainHTTP allows plain HTTP to all hosts.
func (r *Registries) Anonymous(plainHTTP bool) *http.Client { return r.all.Anonymous(plainHTTP) }
