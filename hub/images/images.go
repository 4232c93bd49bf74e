// Package images keeps the hub's image names: what users add, push and remove.
//
// A name stands for the same images in the registry and in the catalog. Images are pushed to the
// hub's registry, or package pull copies them there. Package queue decides whose turn it is, and
// package ingest makes them ready. Each queued image becomes ready, or fails with a reason.
// Attestations, signatures and images of other platforms are only stored: they stay in the registry
// and are not ingested.
package images

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"lighter/hub/catalog"
	"lighter/hub/ingest"
	"lighter/hub/oci"
	"lighter/hub/pull"
	"lighter/hub/queue"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

// Config says which images are ingested.
type Config struct {
	Platforms []string      // OS/ARCH of the images that are ingested by default
	Sources   []string      // registries, HOST or HOST:PORT, that need no public address
	MaxBlob   int64         // bytes of a blob to copy
	ImageTime time.Duration // bounds the copying of an image, and then its ingestion
	Keys      []ed25519.PrivateKey
	// RegistryHosts are the HOST[:PORT] under which nodes pull from the hub's own registry.
	RegistryHosts []string
	Log           *slog.Logger
	// Ready is called with each image that has become ready, before its clients are told. The hub
	// waits there for the image's first layout (package startup), which may be a guess.
	Ready func(ctx context.Context, image catalog.Image) error
}

// Service is safe for concurrent use.
type Service struct {
	// Queue and Copies run the work. Their settings may be changed before Run.
	Queue  *queue.Queue
	Copies *pull.Copies

	config   Config
	catalog  *catalog.Catalog
	registry *registry.Registry
	ingester *ingest.Ingester

	life context.Context // ends with the hub

	repositories [64]sync.Mutex // see Lock

	mu    sync.Mutex      // guards the following
	stale map[string]bool // names that may differ between registry and catalog
}

var (
	_ queue.Images    = (*Service)(nil)
	_ pull.Images     = (*Service)(nil)
	_ queue.Transfer  = (*pull.Copy)(nil)
	_ ingest.Source   = (*pull.Copy)(nil)
	_ registry.Events = (*Service)(nil)
)

// New returns a service over the stores. Nothing happens before Run. life ends with the hub.
func New(life context.Context, config Config, c *catalog.Catalog, r *registry.Registry, i *ingest.Ingester) *Service {
	s := &Service{config: config, catalog: c, registry: r, ingester: i, life: life, stale: map[string]bool{}}
	s.Queue = queue.New(c, s, config.ImageTime, config.Log)
	s.Copies = pull.NewCopies(life, r, s, config.MaxBlob, config.ImageTime, config.Log)
	return s
}

// Recover queues the images again that the previous process did not finish, and finds the names
// that it changed in the registry alone. It comes before Run.
func (s *Service) Recover(ctx context.Context) error {
	if err := s.catalog.Requeue(ctx); err != nil {
		return err
	}
	return s.compareNames(ctx)
}

// Run copies and ingests images until ctx and the life of the service end.
func (s *Service) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.Queue.Run(ctx) })
	group.Go(s.Copies.Run)
	return group.Wait()
}

// RunConfig returns how a container of an image runs.
func (s *Service) RunConfig(ctx context.Context, image catalog.Image) (v1.ImageConfig, error) {
	repository, err := s.repository(image)
	if err != nil {
		return v1.ImageConfig{}, err
	}
	read, err := oci.Read(ctx, repository, image.Digest)
	if err != nil {
		return v1.ImageConfig{}, err
	}
	return read.Run, nil
}

// repository returns the repository of an image's name.
func (s *Service) repository(image catalog.Image) (registry.Repository, error) {
	ref, err := wire.ParseName(image.Name)
	return s.registry.Repository(ref.Repository), err
}

// Transfer returns the copy that brings an image.
func (s *Service) Transfer(image catalog.Image) queue.Transfer { return s.Copies.Of(image) }

// Ingest ingests an image, from its copy if there is one.
func (s *Service) Ingest(
	ctx context.Context, image catalog.Image, from queue.Transfer, progress *report.Progress,
) error {
	if c := from.(*pull.Copy); c != nil {
		return s.ingester.Ingest(ctx, image, c, progress)
	}
	repository, err := s.repository(image)
	if err != nil {
		return err
	}
	return s.ingester.Ingest(ctx, image, repository, progress)
}

// readyTimeout bounds Config.Ready.
const readyTimeout = 20 * time.Second

// Ready calls Config.Ready. An image is ready whatever that returns.
func (s *Service) Ready(ctx context.Context, image catalog.Image) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	now, err := s.catalog.Numbered(ctx, []int64{image.N})
	if err == nil && len(now) > 0 && now[0].State == wire.StateReady {
		err = s.config.Ready(ctx, now[0])
	}
	if err != nil && ctx.Err() == nil {
		s.config.Log.Warn("prepare the first start of an image", "image", image.Name, "err", err)
	}
}

// Finished ends the copies that only this image was waiting for.
func (s *Service) Finished(image catalog.Image) { s.Copies.EndUnwanted(image.Name) }

// BeforeNext corrects the catalog before the queue is read.
func (s *Service) BeforeNext(ctx context.Context) { s.readStale(ctx) }

// Waiting lists the images of a name that are queued or active.
func (s *Service) Waiting(ctx context.Context, name string) ([]catalog.Image, error) {
	images, err := s.catalog.Images(ctx, name)
	return slices.DeleteFunc(images, func(i catalog.Image) bool { return !queue.IsPending(i) }), err
}

// CopyBegun makes the queue look at the images of the copy.
func (s *Service) CopyBegun(*pull.Copy) { s.Queue.Wake() }

// Complete gives the copy's name to its image.
func (s *Service) Complete(ctx context.Context, c *pull.Copy) error {
	defer s.Lock(c.Ref.Repository)()
	if ctx.Err() != nil { // the name was removed, or given to another image
		return context.Cause(ctx)
	}
	if err := c.PutManifests(ctx); err != nil {
		return err
	}
	// No platform is wanted here: the wanted images were queued when the copy began, and may be
	// ready.
	members, err := oci.Expand(ctx, s.registry.Repository(c.Ref.Repository), c.Members.Root, nil)
	if err != nil {
		return err
	}
	_, err = s.nameImages(ctx, c.Ref, imagesOf(members))
	return err
}

// CopyFailed fails the images that the copy was to bring and that are still queued, unless another
// copy brings them or the registry has them. Images that are added later do not wait for the copy.
func (s *Service) CopyFailed(c *pull.Copy, cause error) {
	defer s.Lock(c.Ref.Repository)()
	defer s.Copies.Forget(c)
	var failed []catalog.Image
	reason := report.Reason(errorOf(c.Ref.Name(), cause))
	if s.Queue.Persist(s.life, "fail images that were not copied", func(ctx context.Context) error {
		waiting, err := s.Waiting(ctx, c.Ref.Name())
		if err != nil {
			return err
		}
		failed = slices.DeleteFunc(waiting, func(i catalog.Image) bool {
			other := s.Copies.Of(i)
			return !c.Brings(i.Digest) || i.State != wire.StateQueued || other != nil && other != c ||
				errors.Is(cause, errSuperseded) && s.has(ctx, c.Ref, i)
		})
		return s.catalog.FailQueued(ctx, failed, reason)
	}) != nil {
		return
	}
	for _, image := range failed {
		s.Queue.Finish(image)
	}
}

// CopyEnded makes the queue look at the images of the copy.
func (s *Service) CopyEnded(*pull.Copy) { s.Queue.Arrived() }

// Superseded queues the active image again if the copy brings it.
func (s *Service) Superseded(c *pull.Copy) { s.Queue.Requeue(c) }

// has reports whether the registry has an image.
func (s *Service) has(ctx context.Context, ref wire.Ref, image catalog.Image) bool {
	_, err := s.registry.Repository(ref.Repository).Manifest(ctx, image.Digest)
	return err == nil
}
