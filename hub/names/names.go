// Package names knows what an image name stands for in the hub's registry and in its catalog, and
// makes the two agree.
//
// The package promises that both agree again after each change, even if the process is killed in
// between, or two processes change one name at the same time. Each change is announced in the
// catalog (announce.go). If a change is not completed, a job compares registry and catalog
// (settle.go). Names get images from pushes (Pushed), from users (NameOwn) and from jobs that copy
// images (NameCopy). A job removes a name (remove.go).
//
// The package does not delete a tag that was pushed meanwhile. It deletes no manifests: package
// blobs does, when neither a name nor a client needs them. It does not ingest images: a name in the
// catalog queues a job that does (Ingestion).
//
// Hazards: the lock of a repository is held during requests to the hub's own stores (Service.Lock).
package names

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"strings"
	"sync"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/oci"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/sleep"
	"lighter/wire"
)

// Ingestion says which jobs ingest the images of names. Package images has them.
type Ingestion interface {
	// Kind returns the kind of these jobs. Their key is the name.
	Kind() string
	// Job returns the job that ingests the images of a name, which the hub's registry has.
	Job(name, root string) catalog.Job
	// IsCopy reports whether a job first copies its images from another registry. Such a job gives
	// them the name itself.
	IsCopy(j catalog.Job) bool
}

// Service gives, removes and compares the names of a domain. It is safe for concurrent use.
type Service struct {
	catalog   *catalog.Catalog
	registry  *registry.Registry
	jobs      *jobs.Queue
	ingestion Ingestion
	platforms []string // OS/ARCH of the pushed images that are ingested
	log       *slog.Logger

	repositories [64]sync.Mutex // see Lock
}

// New returns a service over the stores, and adds its kind of jobs to the queue. Pushed images for
// these platforms are ingested.
func New(
	c *catalog.Catalog, r *registry.Registry, q *jobs.Queue, i Ingestion, platforms []string, log *slog.Logger,
) *Service {
	s := &Service{catalog: c, registry: r, jobs: q, ingestion: i, platforms: platforms, log: log}
	q.Add(jobs.Kind{Name: jobKind, AtOnce: namesAtOnce, Tries: settleTries, Run: s.settle,
		Pauses: sleep.Backoff{First: 10 * time.Second, Most: 20 * time.Second}})
	return s
}

// Recover makes the queued jobs of names run at once: a previous process may have changed these
// names in the registry and not in the catalog.
func (s *Service) Recover(ctx context.Context) error { return s.catalog.Jobs.Hurry(ctx, jobKind) }

var repositorySeed = maphash.MakeSeed()

// Lock locks the names of a repository in the registry and in the catalog, for this process, until
// unlock is called. The lock covers the changes of both, and the reads that decide about them: in
// between, no other change of a name may begin. So the lock's owner waits for requests to the hub's
// own stores, which may be on S3 and PostgreSQL. It makes a few requests for each manifest of the
// name, and waits while another process deletes one of the manifests (deleteLease, and the
// registry's wait for blobs of 45 s). It waits for no client and no other registry, and takes no
// second lock.
//
// Other changes in the repository wait as long, and so do changes in the few repositories that
// share its lock. No time bounds this wait: a store that accepts requests and does not answer them
// stops changes until their connections break.
func (s *Service) Lock(repository string) (unlock func()) {
	l := &s.repositories[maphash.String(repositorySeed, repository)%uint64(len(s.repositories))]
	l.Lock()
	return sync.OnceFunc(l.Unlock)
}

// Pushed notes that a tag of the hub's registry points to a manifest. The repository is locked.
func (s *Service) Pushed(ctx context.Context, repository, tag string) error {
	ref := wire.Ref{Repository: repository, Tag: tag}
	return s.readName(ctx, catalog.Lease{}, ref)
}

// readName copies what a name stands for from the registry to the catalog. The lease is that of the
// name's job, or none. The repository is locked.
func (s *Service) readName(ctx context.Context, l catalog.Lease, ref wire.Ref) error {
	repository := s.registry.Repository(ref.Repository)
	root, err := repository.Manifest(ctx, ref.Reference())
	if err != nil {
		return err
	}
	members, err := oci.Expand(ctx, repository, root, s.platforms)
	images := ImagesOf(members)
	if err != nil { // the registry serves the manifest; the catalog gets the reason why it is not ingested
		images = []catalog.Image{{Root: root.Digest, Digest: root.Digest, State: wire.StateFailed,
			Error: report.Reason(errorOf(ref.Name(), err))}}
	}
	_, err = s.nameImages(ctx, l, ref, images)
	return err
}

// nameImages makes a name stand for these images in the catalog and returns them as they are now.
// The registry has them already. The lease is that of the name's job, or none. The repository is
// locked.
func (s *Service) nameImages(
	ctx context.Context, l catalog.Lease, ref wire.Ref, images []catalog.Image,
) ([]catalog.Image, error) {
	now, err := s.catalog.NameBy(ctx, l, ref.Name(), images, s.ingestion.Job(ref.Name(), images[0].Root))
	if err != nil {
		return nil, err
	}
	s.jobs.Changed(s.ingestion.Kind(), ref.Name())
	return now, nil
}

// Deleted notes that a tag was deleted from the hub's registry, or a manifest with all its tags.
// The repository is locked.
func (s *Service) Deleted(ctx context.Context, repository, reference string) error {
	ref := wire.Ref{Repository: repository, Tag: reference}
	if !strings.Contains(reference, ":") { // tags have no colon, digests have one
		return s.forget(ctx, catalog.Lease{}, ref.Name(), "")
	}
	names, err := s.catalog.NamesIn(ctx, repository, reference)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := s.forget(ctx, catalog.Lease{}, name, reference); err != nil {
			return err
		}
	}
	return nil
}

// forget removes a name from the catalog or, if digest is not "", only its images with that digest.
// The lease is that of the name's job, or none.
func (s *Service) forget(ctx context.Context, l catalog.Lease, name, digest string) error {
	defer s.jobs.Changed(s.ingestion.Kind(), name)
	return s.catalog.RemoveBy(ctx, l, s.ingestion.Kind(), name, digest)
}

func errorOf(name string, err error) error { return fmt.Errorf("image %s: %w", name, err) }
