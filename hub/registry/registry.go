// Package registry is the hub's OCI registry. Clients get images back byte for byte, with the
// digests with which they were pushed or copied. A blob's digest is checked before the blob is
// stored, and a blob is stored once for all repositories. A layer that is not stored because
// another registry has it is read from that registry (Upstream).
//
// The package uses the registry of distribution/distribution twice, over the same files: clients
// use it over HTTP (Handler), and this process with the methods of Registry and Repository. The
// package does not interpret images. It reports when clients change what a name points to (Events).
package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"slices"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	"github.com/distribution/distribution/v3/registry/storage"
	"github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/factory"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem" // the driver "filesystem"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/semaphore"

	"lighter/hub/away"
	"lighter/hub/registry/bucket"

	// The kinds of manifests that can be kept register themselves.
	_ "github.com/distribution/distribution/v3/manifest/manifestlist"
	_ "github.com/distribution/distribution/v3/manifest/ocischema"
	_ "github.com/distribution/distribution/v3/manifest/schema2"
)

// ErrNotFound marks errors about manifests and blobs that the registry does not have.
var ErrNotFound = errors.New("not in the hub's registry")

const (
	// MaxManifest bounds a manifest or index, in bytes.
	MaxManifest = 4 << 20
	// MaxConfig bounds an image's config, in bytes.
	MaxConfig = 8 << 20
)

// fileThreads bounds the operations on files in a directory at a time, because each may block a
// thread.
const fileThreads = 64

// Registry is an open registry. It is safe for concurrent use.
type Registry struct {
	// TouchInterval is the least time between two notes that clients rely on the same blob. It is
	// set before the registry is used.
	TouchInterval time.Duration
	// ReleasesLayers says that layers of pushed images are deleted when they are ingested. It is
	// set before the registry is used.
	ReleasesLayers bool
	// Bounds are the registry's own, unless they are replaced by those of the process before the
	// registry is used.
	Bounds *Bounds

	app       *handlers.App
	driver    driver.StorageDriver
	bucket    *bucket.Driver // nil if the files are in a directory
	namespace distribution.Namespace
	log       *slog.Logger
	upstream  Upstream // may be nil: there is none
	uses      Uses     // may be nil: nothing is deleted
	found     found
}

// Bounds bounds the memory that pushes of manifests take in a process, and the work that lookups of
// manifests cause, for all its registries.
type Bounds struct {
	manifests *semaphore.Weighted // in bytes; see maxManifests
	found     *semaphore.Weighted // see foundAtOnce
}

// NewBounds returns the bounds of a process.
func NewBounds() *Bounds {
	return &Bounds{manifests: semaphore.NewWeighted(maxManifests), found: semaphore.NewWeighted(foundAtOnce)}
}

// maxCatalog bounds the repositories in one answer to /v2/_catalog. A longer list is paginated.
const maxCatalog = 1000

// Open opens the registry in a storage until ctx ends. All processes that serve one registry have
// the same secret: an upload that one of them has begun can go on at another.
//
// upstream has the layers that are not stored. uses records which blobs clients rely on. Both may
// be nil.
func Open(
	ctx context.Context, in Storage, upstream Upstream, uses Uses, secret []byte, log *slog.Logger,
) (*Registry, error) {
	routeLogs(log)
	files, err := factory.Create(ctx, in.driver, in.parameters)
	if err != nil {
		return nil, fmt.Errorf("open the registry: %w", err)
	}
	onS3, _ := files.(*bucket.Driver)
	files = reads{files}
	namespace, err := storage.NewRegistry(ctx, files, storage.EnableDelete, countUpstream)
	if err != nil {
		return nil, fmt.Errorf("open the registry: %w", err)
	}
	config := &configuration.Configuration{Middleware: withNoting(), Storage: configuration.Storage{
		in.driver:  in.parameters,
		"delete":   {"enabled": true},
		"redirect": {"disable": true},
		// EndUploads deletes unfinished uploads instead.
		"maintenance": {"uploadpurging": map[any]any{"enabled": false}},
	}}
	config.HTTP.Secret = string(secret)
	config.Catalog.MaxEntries = maxCatalog
	// The app makes a second registry over these files. It has to have the options of the first, so
	// that pushed and copied images are checked alike. Without validation an index may name
	// manifests that are missing here, and foreign layers are accepted.
	config.Validation.Disabled = true
	return &Registry{app: handlers.NewApp(ctx, config), driver: files, bucket: onS3, namespace: namespace, log: log,
		upstream: upstream, uses: uses, TouchInterval: touchInterval, Bounds: NewBounds()}, nil
}

// BlobSize returns the size of a stored blob in bytes, whichever repositories have it. The error
// wraps ErrNotFound if the registry does not store it.
func (r *Registry) BlobSize(ctx context.Context, blob string) (int64, error) {
	desc, err := r.namespace.BlobStatter().Stat(ctx, digest.Digest(blob))
	if err != nil {
		return 0, fmt.Errorf("blob %s: %w", blob, unavailable(mapNotFound(err)))
	}
	return desc.Size, nil
}

// ErrCorrupt marks errors about stored blobs whose bytes have another digest.
var ErrCorrupt = errors.New("the stored bytes have another digest")

// VerifyBlob reads a stored blob, and compares it with its digest. It returns the number of bytes
// that it has read. The error wraps ErrNotFound if the registry does not store the blob, and
// ErrCorrupt if its bytes are wrong.
func (r *Registry) VerifyBlob(ctx context.Context, blob string) (n int64, err error) {
	id, err := digest.Parse(blob)
	if err != nil {
		return 0, fmt.Errorf("verify blob %q: %w", blob, err)
	}
	data, err := r.driver.Reader(ctx, dataFile(id), 0)
	if err == nil {
		defer data.Close()
		verifier := id.Verifier()
		if n, err = io.Copy(verifier, data); err == nil && !verifier.Verified() {
			return n, fmt.Errorf("verify blob %s: %w", blob, ErrCorrupt)
		}
	}
	if err != nil {
		return n, fmt.Errorf("verify blob %s: %w", blob, unavailable(mapNotFound(err)))
	}
	return n, nil
}

// dataFile is the file with the bytes of a blob.
func dataFile(id digest.Digest) string {
	return path.Join(blobsPath, id.Algorithm().String(), id.Encoded()[:2], id.Encoded(), "data")
}

// ErrUnavailable marks errors of the storage itself. The same call may succeed later; see IsAway.
var ErrUnavailable = away.New("the registry's storage is not available")

// pingTimeout bounds Ping.
const pingTimeout = 30 * time.Second

// Ping returns an error that wraps ErrUnavailable if the storage does not answer.
func (r *Registry) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	_, err := r.driver.Stat(ctx, blobsPath)
	if err = mapNotFound(err); errors.Is(err, ErrNotFound) { // nothing was ever stored
		return nil
	}
	return unavailable(err)
}

// IsAway reports whether an error says that the storage is not available. If the storage answers,
// the error is about the files of one repository or blob, and the same call would fail again.
func (r *Registry) IsAway(ctx context.Context, err error) bool {
	return errors.Is(err, ErrUnavailable) && r.Ping(ctx) != nil
}

// unavailable marks an error of the storage.
func unavailable(err error) error {
	if err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, context.Canceled) ||
		errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// ofStorage marks an error of the library if it comes from the storage. The library's other errors
// are about the request.
func ofStorage(err error) error {
	if isOfStorage(err) {
		return unavailable(err)
	}
	return err
}

func isOfStorage(err error) bool {
	several := distribution.ErrManifestVerification(nil) // the errors of several blobs of a manifest
	return errors.As(err, new(driver.Error)) || errors.As(err, &several) && slices.ContainsFunc(several, isOfStorage)
}

// dropLease is the lease of the deletion of a damaged blob, which reads the blob once more. Half of
// it bounds the deletion.
const dropLease = 10 * time.Minute

// DropCorrupt deletes the bytes of a blob for all repositories if they are corrupt: otherwise a
// client that pushes the blob would find that it exists. It reports false if the bytes are right,
// or cannot be read or deleted now.
func (r *Registry) DropCorrupt(ctx context.Context, blob string) (dropped bool, err error) {
	if r.uses == nil {
		return false, nil
	}
	err = r.uses.DeleteDamaged(ctx, blob, dropLease, func(ctx context.Context) error {
		// Clients wait from now on. One of them may have stored the right bytes just before.
		if _, err := r.VerifyBlob(ctx, blob); !errors.Is(err, ErrCorrupt) {
			return nil
		}
		dropped = true
		return r.Drop(ctx, blob)
	})
	return dropped && err == nil, err
}

// Drop deletes the bytes of blobs and manifests for all repositories. Its caller has the right to
// delete them, or no client uses the registry.
func (r *Registry) Drop(ctx context.Context, blobs ...string) error {
	files := make([]string, len(blobs))
	for i, blob := range blobs {
		id, err := digest.Parse(blob)
		if err != nil {
			return fmt.Errorf("drop blob %q: %w", blob, err)
		}
		files[i] = dataFile(id)
	}
	if err := r.deleteFiles(ctx, blobsPath, files); err != nil {
		return fmt.Errorf("drop %d blobs: %w", len(blobs), err)
	}
	return nil
}
