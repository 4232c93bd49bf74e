// Package pushthrough passes pushes to other registries on, and ingests what was pushed, so that
// the image is ready soon after its push.
//
// A host name of the hub stands for a registry. The package promises:
//
//   - All requests go to the registry, with the client's credentials, and all answers come back, as
//     they are. Only Location and Link lead to the hub instead of the registry. The hub's own
//     logins are never used for that.
//   - Layers are split while they are pushed (package uploads). A push never waits for that.
//   - When the registry has accepted the manifest of a tag, the image is queued before the client
//     gets the answer. The client waits for the queue for a few seconds at most: then the image is
//     queued later.
//   - An image is ingested, and its layers are published, only if everybody who reaches the hub may
//     read the image (pullthrough.Admit), and if its tag still stands for it. So nothing of a push
//     that the registry refuses is published.
//
// Some clients look for the tag first, and push nothing if the registry has the image. So a tag
// that is found through the hub counts as pushed. Manifests that were pushed only by digest,
// artifacts, and images of other platforms are passed on and not ingested.
//
// Hazard: the pushes of a tag through one process are looked at one after the other. Two processes
// may look at two pushes of a tag at the same time. Then the hub may have the older image until the
// tag is pushed or pulled through the hub again.
package pushthrough

import (
	"context"
	"log/slog"
	"net/http"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/semaphore"

	"lighter/hub/pullthrough"
	"lighter/hub/registries"
	"lighter/hub/registry"
	"lighter/hub/uploads"
	"lighter/wire"
)

// Registry is another registry that clients push to through the hub.
type Registry struct {
	Names []string             // HOST or HOST:PORT of the hub that stand for the registry
	Rule  pullthrough.Registry // decides which of its images are ingested
	Front *registries.Front
}

// Domain has the parts of the domain that a repository belongs to.
type Domain struct {
	Uploads *uploads.Splitter // holds layers until they are admitted
	// Ingest queues an image, unless the domain has it. An error that wraps report.ErrInvalid or
	// registry.ErrQuota is final.
	Ingest func(ctx context.Context, image pullthrough.Image) error
}

// Through decides about images, and remembers what was pushed. Package pullthrough has it.
type Through interface {
	Admit(ctx context.Context, r *pullthrough.Registry, repository, which, digest string) error
	Pushed(repository, tag string, m registry.Manifest)
	Recent(repository, digest string) (registry.Manifest, bool)
}

// Config says what is pushed through the hub.
type Config struct {
	Registries []Registry
	Platforms  []string // OS/ARCH of the images that are ingested
	Through    Through
	// DomainOf returns the domain of a path in the hub's registry.
	DomainOf func(repository string) *Domain
	// Stall is how long a registry may take for the next piece of a request or an answer.
	Stall time.Duration
	Log   *slog.Logger
}

const (
	// maxLocations bounds the uploads whose URLs do not tell their repository, and that are
	// remembered.
	maxLocations = 4096
	// maxPushed bounds the pushed images that are to be queued. Further ones are ingested after a
	// later push.
	maxPushed = 256
	// maxFound bounds the images that clients have found, and that are to be queued, and maxNoticed
	// those that are remembered.
	maxFound   = 16
	maxNoticed = 4096
)

// Service passes pushes on. It is safe for concurrent use.
type Service struct {
	config Config
	fronts []*front
	life   context.Context
	end    context.CancelFunc
	tasks  sync.WaitGroup

	slots   *semaphore.Weighted        // of pushed images
	finds   *semaphore.Weighted        // of images that clients have found
	noticed *lru.Cache[string, string] // digests of images that were queued, by name

	mu     sync.Mutex // guards the following
	closed bool
	turns  map[string]chan struct{} // by the name of an image: closed when the last push was looked at

	counts [results]atomic.Int64
}

// New returns a service, whose work ends with ctx. The caller calls Close.
func New(ctx context.Context, c Config) *Service {
	s := &Service{config: c, slots: semaphore.NewWeighted(maxPushed), finds: semaphore.NewWeighted(maxFound),
		noticed: cache(maxNoticed), turns: map[string]chan struct{}{}}
	s.life, s.end = context.WithCancel(ctx)
	for _, r := range c.Registries {
		s.fronts = append(s.fronts, newFront(s, r))
	}
	return s
}

// Close ends the service's work.
func (s *Service) Close() error {
	s.end()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.tasks.Wait()
	return nil
}

// IsFor reports whether a request is for a registry, by its host.
func (s *Service) IsFor(req *http.Request) bool { return s.find(req) != nil }

func (s *Service) find(req *http.Request) *front {
	for _, f := range s.fronts {
		if pullthrough.HasName(f.Names, req.Host) {
			return f
		}
	}
	return nil
}

var (
	manifestPath = regexp.MustCompile(`^/v2/(.+)/manifests/([^/]+)$`)
	// uploadPath matches the paths of uploads, and those where they begin, of most registries.
	uploadPath = regexp.MustCompile(`^/v2/(.+)/blobs/uploads?(?:/[^/]*)?$`)
)

// ServeHTTP passes a request on.
func (s *Service) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	f := s.find(req)
	if f == nil {
		_ = errcode.ServeJSON(w, errcode.ErrorCodeUnavailable.WithMessage("this name stands for no registry"))
		return
	}
	path := req.URL.Path
	if parts := manifestPath.FindStringSubmatch(path); parts != nil && req.Method == http.MethodPut {
		if repository, domain := f.domainOf(parts[1]); domain != nil {
			req = copyManifest(req, &pushed{front: f, domain: domain, repository: repository, which: parts[2]})
		}
		f.proxy.ServeHTTP(w, req)
		return
	}
	if repository, domain := f.domainOf(f.uploadsTo(path)); domain != nil {
		domain.Uploads.Pass(w, req, f.proxy, repository, f.Rule.Host+path)
		return
	}
	f.proxy.ServeHTTP(w, req)
}

// domainOf returns the HOST[:PORT]/PATH of a repository of the registry, and its domain. The domain
// is nil if images of the repository are not ingested.
func (f *front) domainOf(path string) (repository string, domain *Domain) {
	repository = f.Rule.Host + "/" + path
	ref, err := wire.ParseName(repository)
	if err != nil || ref.NamedRepository() != repository || !f.Rule.Allows(path) {
		return "", nil
	}
	return repository, f.service.config.DomainOf(ref.Repository)
}

// uploadsTo returns the repository of an upload, without the host. It is empty if the path is not
// that of an upload.
func (f *front) uploadsTo(path string) string {
	if parts := uploadPath.FindStringSubmatch(path); parts != nil {
		return parts[1]
	}
	repository, _ := f.locations.Get(path)
	return repository
}

func cache(size int) *lru.Cache[string, string] {
	c, _ := lru.New[string, string](size) // fails only for sizes below 1
	return c
}
