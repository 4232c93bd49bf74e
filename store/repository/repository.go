// Package repository reads a repository of an OCI registry for a node: byte ranges of blobs, whole
// blobs, manifests, and what refers to them. Chunk sources for images without a hub are made of it.
//
// It promises that manifests by digest and whole blobs have the digests that were asked for, and
// that a range is the range that was asked for, of a blob of the expected size. The bytes of a
// range are not verified: the caller does that, and returns a *chunk.InvalidError if they are
// wrong. Errors mean what those of a store.Source mean. They name the URL without its query, the
// range and the cause. A range is not requested again after a failure of the network, because
// package store does that. A whole blob is.
//
// It logs in as package registries does, also weeks after it was opened. It follows redirects
// itself, and sends no credentials along them. It remembers for two minutes where a blob's redirect
// led to, and asks the registry again if that place refuses: such URLs are signed and expire.
//
// It refuses answers that are compressed for transport, redirects in circles, and lists of
// referrers without an end. It does not list tags or repositories, and changes nothing. Its only
// goroutine, besides those of net/http, ends with a list of referrers.
//
// Hazards: the media type of a manifest, a tag, and a list of referrers are what the registry says
// at this moment. No digest covers them.
package repository

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/registries"
	"lighter/sleep"
	"lighter/store"
)

const (
	// minProgress is how many bytes of a body have to arrive in each stallTime. Package registries
	// bounds the time until an answer begins (30 s), and the time for a login.
	minProgress = 4 << 10
	stallTime   = 15 * time.Second
	// smallTime bounds the time for a manifest, or for a list of referrers.
	smallTime = 60 * time.Second
)

var (
	// ErrNoRanges says that a registry, or the place to which it redirects, ignores ranges. The
	// blob can be read only as a whole.
	ErrNoRanges = errors.New("the server ignores ranges")
	// ErrDenied says that a registry does not let this login read something. Some registries answer
	// "not found" instead.
	ErrDenied = errors.New("the registry denies access")
)

// Repository is a repository of a registry. It is safe for concurrent use.
type Repository struct {
	name    name.Repository
	session *registries.Session
	targets targets
	// hasReferrers says that the registry has the referrers API.
	hasReferrers atomic.Bool
	roundTrip    atomic.Int64  // what RoundTrip returns
	stall        time.Duration // stallTime; shorter in tests
	pauses       sleep.Backoff // pauses; shorter in tests
}

// Open returns a repository, HOST[:PORT]/PATH. It sends nothing.
func Open(all *registries.Registries, repository string, a registries.Access) (*Repository, error) {
	parsed, err := name.NewRepository(repository)
	if err != nil {
		return nil, fmt.Errorf("open repository %q: %w", repository, err)
	}
	session, err := all.Session(parsed, a)
	if err != nil {
		return nil, fmt.Errorf("open repository %s: %w", repository, err)
	}
	return &Repository{name: parsed, session: session, targets: newTargets(), stall: stallTime, pauses: pauses}, nil
}

// CheckName returns an error if Open knows no such repository.
func CheckName(repository string) error {
	if _, err := name.NewRepository(repository, name.StrictValidation); err != nil {
		return fmt.Errorf("%q is not a repository, HOST[:PORT]/PATH: %w", repository, err)
	}
	return nil
}

// String returns HOST[:PORT]/PATH in containerd's form: Docker Hub is docker.io.
func (r *Repository) String() string { return registries.RepositoryOf(r.name) }

// RoundTrip returns the shortest time to a first byte from the registry; 0: not known.
func (r *Repository) RoundTrip() time.Duration { return time.Duration(r.roundTrip.Load()) }

// measured notes the time to a first byte.
func (r *Repository) measured(rtt time.Duration) {
	for {
		shortest := r.roundTrip.Load()
		if rtt <= 0 || shortest > 0 && shortest <= int64(rtt) || r.roundTrip.CompareAndSwap(shortest, int64(rtt)) {
			return
		}
	}
}

// url returns the URL of a manifest, a blob or referrers (kind). The session replaces https if the
// registry has no TLS.
func (r *Repository) url(kind, which string) *url.URL {
	return &url.URL{Scheme: "https", Host: r.name.RegistryStr(),
		Path: "/v2/" + r.name.RepositoryStr() + "/" + kind + "/" + which}
}

// refine makes an error of package registries one that package store understands.
func refine(err error) error {
	if rest := (*registries.RestError)(nil); errors.As(err, &rest) {
		return &restError{err, rest.Until}
	}
	var failed *transport.Error // of the token server
	if errors.As(err, &failed) &&
		(failed.StatusCode == http.StatusUnauthorized || failed.StatusCode == http.StatusForbidden) {
		return fmt.Errorf("%w: %w", ErrDenied, err)
	}
	return err
}

// restError says that a host wants no requests before a time.
type restError struct {
	error
	until time.Time
}

var _ store.Unavailable = (*restError)(nil)

func (e *restError) Unwrap() error { return e.error }

// RetryAfter implements store.Unavailable.
func (e *restError) RetryAfter() time.Duration { return max(0, time.Until(e.until)) }

// Missed implements store.Unavailable.
func (e *restError) Missed() bool { return false }

// Check returns nil if the registry lets this login read a manifest now. Otherwise the error wraps
// ErrDenied, or chunk.ErrNotFound, or the registry could not be asked. The registry has to name the
// manifest's digest or send the manifest: a login page with status 200 is no permission.
func (r *Repository) Check(ctx context.Context, manifest digest.Digest) error {
	ctx, cancel := context.WithTimeout(ctx, smallTime)
	defer cancel()
	err := manifest.Validate()
	if err == nil {
		err = r.check(ctx, manifest)
	}
	if err != nil {
		return fmt.Errorf("ask %s for access to manifest %s: %w", r, manifest, err)
	}
	return nil
}

func (r *Repository) check(ctx context.Context, manifest digest.Digest) error {
	a, err := r.send(ctx, http.MethodHead, r.url("manifests", manifest.String()), manifestHeader())
	if err != nil {
		return err
	}
	defer a.Body.Close()
	switch {
	case a.isTarget, a.StatusCode == http.StatusMethodNotAllowed, a.StatusCode == http.StatusNotImplemented,
		a.StatusCode == http.StatusOK && a.Header.Get("Docker-Content-Digest") != manifest.String():
		_, err := r.fetchManifest(ctx, manifest.String())
		return err
	case a.StatusCode == http.StatusOK:
		return nil
	}
	return a.statusError()
}

// checkBlob returns an error if a descriptor cannot be that of a blob.
func checkBlob(d v1.Descriptor) error {
	if err := d.Digest.Validate(); err != nil {
		return &chunk.InvalidError{What: fmt.Sprintf("descriptor of blob %q", d.Digest), Err: err}
	}
	if d.Size < 0 {
		return &chunk.InvalidError{What: "descriptor of blob " + d.Digest.String(),
			Err: fmt.Errorf("its size is %d", d.Size)}
	}
	return nil
}
