// Package images adds images and ingests them, as jobs of package jobs.
//
// Images are pushed to the hub's registry, or come from another registry (add.go). One job fetches
// and ingests all images of a name (work.go). The package promises that each queued image becomes
// ready, fails with a reason, or is only stored, even if processes of the hub end meanwhile.
// Attestations, signatures and images of other platforms are only stored: they stay in the registry
// and are not ingested. Package names decides what a name stands for.
//
// The package refuses images of repositories that belong to another domain, and images beyond a
// quota (package quota). It reads other registries only at public addresses, unless they are
// configured.
//
// Hazard: a job that copies an image keeps its client's login, sealed, until it ends (secret.go).
package images

import (
	"context"
	"log/slog"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/catalog"
	"lighter/hub/ingest"
	"lighter/hub/jobs"
	"lighter/hub/names"
	"lighter/hub/oci"
	"lighter/hub/pull"
	"lighter/hub/quota"
	"lighter/hub/registries"
	"lighter/hub/registry"
	"lighter/wire"
)

// Config has the parts of a hub that a Service uses, and says which images are ingested.
type Config struct {
	Platforms  []string               // OS/ARCH of the images that are ingested by default
	Registries *registries.Registries // from which images are added
	Names      *names.Service
	Quotas     *quota.Checker
	// Belongs returns an error that wraps report.ErrInvalid if images of a repository are not to be
	// added here.
	Belongs   func(repository string) error
	MaxBlob   int64 // bounds the bytes of a blob of another registry
	KeepBlobs KeepBlobs
	ImageTime time.Duration // bounds the fetch and ingestion of all images of a name
	Secret    []byte        // 32 bytes, which seal the logins of jobs
	Log       *slog.Logger
	// Upstream opens a repository of another registry without the login of any user.
	Upstream func(ctx context.Context, repository string, plainHTTP bool) (*pull.Source, error)
	// Memory has what the hub has just read for clients.
	Memory pull.Memory
	// Published is called after an image has become ready, whoever wants it.
	Published func(ctx context.Context)
	// Ready is called with each image that has become ready, before the clients that wait for the
	// image get their answer. It waits for the image's first layout (package startup), which may be
	// a guess.
	Ready func(ctx context.Context, image catalog.Image) error
}

// Service adds and ingests the images of a domain. It is safe for concurrent use.
type Service struct {
	// ImageTime is Config.ImageTime. It may be changed before the jobs run.
	ImageTime time.Duration

	config   Config
	catalog  *catalog.Catalog
	registry *registry.Registry
	ingester *ingest.Ingester
	jobs     *jobs.Queue

	life context.Context // ends with the hub
}

// New returns a service over the stores, and adds its kind of jobs to the queue. life ends with the
// hub.
func New(
	life context.Context, config Config, c *catalog.Catalog, r *registry.Registry, i *ingest.Ingester, q *jobs.Queue,
) *Service {
	s := &Service{ImageTime: config.ImageTime, config: config, catalog: c, registry: r, ingester: i, jobs: q,
		life: life}
	q.Add(jobs.Kind{Name: JobKind, AtOnce: imagesAtOnce, Urgent: urgentAtOnce, Run: s.run})
	return s
}

// Recover queues again the pending images that have no job.
func (s *Service) Recover(ctx context.Context) error {
	pending, err := s.catalog.PendingNames(ctx, JobKind)
	if err != nil {
		return err
	}
	for name, root := range pending {
		if _, err := s.catalog.Jobs.Add(ctx, Jobs{}.Job(name, root), 0); err != nil {
			return err
		}
	}
	return nil
}

// RunConfig returns the configuration with which containers of an image run, such as the command.
func (s *Service) RunConfig(ctx context.Context, image catalog.Image) (v1.ImageConfig, error) {
	ref, err := wire.ParseName(image.Name)
	if err != nil {
		return v1.ImageConfig{}, err
	}
	read, err := oci.Read(ctx, s.registry.Repository(ref.Repository), image.Digest)
	if err != nil {
		return v1.ImageConfig{}, err
	}
	return read.Run, nil
}
