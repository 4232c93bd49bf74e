// Package pullthrough lets clients read other registries through the hub, so that each image that a
// node pulls is ingested, and lazy on the next node.
//
// containerd (hosts.toml), Docker (registry-mirrors), Podman and CRI-O (registries.conf) ask the
// hub before the registry itself. The package promises:
//
//   - Only configured registries are read, and only by clients that their rule admits (Readers). A
//     client gets nothing of a repository that the registry would not give to it.
//   - Concurrent readers of a blob cause one request to the registry (package upstream). Bytes are
//     passed on as they arrive, and a blob's last byte only after its digest was checked.
//   - A client that cannot be served gets 404 and goes on to the registry itself. It never gets the
//     registry's status 429, at which containerd would ask the hub again and again.
//   - A tag is believed for a while, then the registry is asked. While that is not possible, the
//     client gets the tag's last manifest, and a header Warning.
//   - An image is ingested after its pull has ended, and only if everybody who reaches the hub may
//     read it: the hub's own registry and its objects have no other rule.
//
// It does not list tags and referrers: clients get these from the registry itself.
//
// Hazard: what is remembered of registries and clients is in memory. After a restart, the first
// request for each repository asks the registry again.
package pullthrough

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/hashicorp/golang-lru/v2/expirable"
	"golang.org/x/sync/singleflight"

	"lighter/hub/pull"
	"lighter/hub/registry"
	"lighter/hub/report"
)

// Domain has the parts of the domain that a repository belongs to.
type Domain struct {
	Registry *registry.Registry
	Handler  http.Handler // of the hub's own registry
	// Pass opens a blob of a repository of another registry, which open opens.
	Pass func(ctx context.Context, repository, digest string, size int64,
		open func(context.Context) (*pull.Source, error)) (registry.Blob, error)
	// Ingest queues an image, unless the domain has it.
	Ingest func(ctx context.Context, image Image) error
}

// Config says what is read through the hub.
type Config struct {
	Registries  []Registry
	DockerNames []string // host names of the hub under which it stands for Docker Hub
	OwnHosts    []string // HOST[:PORT] of the hub's own registry
	// Open opens a repository, HOST[:PORT]/PATH, of another registry.
	Open func(ctx context.Context, repository string, login Login) (*pull.Source, error)
	// DomainOf returns the domain of a path in the hub's registry.
	DomainOf func(repository string) *Domain
	// IsAdministrator reports whether a request has the token of the hub's administrators.
	IsAdministrator func(*http.Request) bool
	// Settle is how long no blob of an image is read before the image's pull counts as ended.
	Settle time.Duration
	Log    *slog.Logger
}

// Service reads other registries on behalf of clients. It is safe for concurrent use.
type Service struct {
	config     Config
	registries map[string]*Registry // by host
	secret     []byte
	life       context.Context
	end        context.CancelFunc
	tasks      sync.WaitGroup

	flights   singleflight.Group
	rests     rests
	permits   *lru.Cache[string, time.Time]        // when a reader was last seen to be admitted, by reader.key
	answered  *lru.Cache[string, time.Time]        // when a registry last answered, by reader.key and question
	refused   *expirable.LRU[string, error]        // by reader.key and question
	sources   *expirable.LRU[string, *pull.Source] // by reader.key
	tags      *lru.Cache[string, tag]              // by REPOSITORY:TAG
	names     *lru.Cache[string, string]           // tags by REPOSITORY@DIGEST
	parents   *lru.Cache[string, parent]           // by REPOSITORY@DIGEST
	sizes     *lru.Cache[string, int64]            // of blobs, by REPOSITORY@DIGEST
	manifests *manifestCache                       // by REPOSITORY@DIGEST
	pulls     pulls
	counts    [results]atomic.Int64
}

// New returns a service, whose work ends with ctx. The caller calls Close.
func New(ctx context.Context, c Config) *Service {
	s := &Service{config: c, registries: map[string]*Registry{}, secret: []byte(rand.Text()),
		permits: cache[time.Time](maxPermits), tags: cache[tag](maxNames), names: cache[string](maxNames),
		parents: cache[parent](maxNames), sizes: cache[int64](maxSizes), manifests: newManifestCache(),
		answered: cache[time.Time](maxAnswered),
		refused:  expirable.NewLRU[string, error](maxRefused, nil, refusedTime),
		sources:  expirable.NewLRU[string, *pull.Source](maxSources, nil, sourceTime)}
	s.life, s.end = context.WithCancel(ctx)
	s.pulls.service = s
	for _, r := range c.Registries {
		s.registries[r.Host] = &r
	}
	return s
}

func cache[T any](size int) *lru.Cache[string, T] {
	c, _ := lru.New[string, T](size) // fails only for sizes below 1
	return c
}

// Close ends the service's work.
func (s *Service) Close() error {
	s.end()
	s.pulls.close()
	s.tasks.Wait()
	return nil
}

// Handler serves reads of other registries, and passes all other requests to next.
func (s *Service) Handler(next http.Handler) http.Handler {
	if len(s.registries) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r, found := s.find(req)
		switch {
		case !found:
			s.count(denied)
			refuse(w, req, "the hub does not read this repository of another registry on behalf of clients")
		case r == nil:
			next.ServeHTTP(w, req)
		default:
			s.serve(w, r)
		}
	})
}

// Kinds of objects.
const (
	manifests = "manifests"
	blobs     = "blobs"
)

func (s *Service) serve(w http.ResponseWriter, r *request) {
	domain := s.config.DomainOf(r.own)
	rd := s.readerOf(r)
	var err error
	switch {
	case r.kind == manifests:
		err = s.serveManifest(w, rd, domain)
	case r.kind == blobs:
		err = s.serveBlob(w, rd, domain)
	case r.mirror:
		err = errMissing
	default:
		domain.Handler.ServeHTTP(w, r.Request)
	}
	if err == nil {
		return
	}
	s.count(resultOf(err))
	switch {
	case !r.mirror: // the client asks the hub's registry, which may have the image for another reason
		domain.Handler.ServeHTTP(w, r.Request)
	case errors.Is(err, errDenied) && r.registry.Readers == Credentials && r.Header.Get("Authorization") == "":
		w.Header().Set("WWW-Authenticate", `Basic realm="`+r.registry.Host+`"`)
		w.Header().Set("Cache-Control", "no-store")
		_ = errcode.ServeJSON(w, errcode.ErrorCodeUnauthorized.WithMessage(report.Reason(err)))
	default:
		refuse(w, r.Request, publicReason(err))
	}
}

// publicReason returns an error's text for clients, without what the registry has answered:
// redirects have addresses and signatures that clients must not see.
func publicReason(err error) string {
	for _, kind := range []error{errMissing, errDenied, errUnavailable} {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	return report.Reason(err)
}

// refuse makes a client go on to the registry itself. No cache may keep this answer.
func refuse(w http.ResponseWriter, req *http.Request, why string) {
	w.Header().Set("Cache-Control", "no-store")
	code := errcode.ErrorCodeManifestUnknown
	if parts := requestPath.FindStringSubmatch(req.URL.Path); parts != nil && parts[2] == blobs {
		code = errcode.ErrorCodeBlobUnknown
	}
	_ = errcode.ServeJSON(w, code.WithMessage(why+"; ask the registry itself"))
}

// serveOwn lets the hub's own registry answer.
func serveOwn(w http.ResponseWriter, rd *reader, domain *Domain) {
	req := rd.Clone(rd.Context())
	req.URL.Path, req.URL.RawPath, req.URL.RawQuery = "/v2/"+rd.own+"/"+rd.kind+"/"+rd.which, "", ""
	domain.Handler.ServeHTTP(w, req)
}
