package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/registry/api/errcode"
	registrymiddleware "github.com/distribution/distribution/v3/registry/middleware/registry"
	"github.com/distribution/distribution/v3/registry/storage"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/report"
)

// Upstream has the layers of images of other registries. A repository of the hub's registry serves
// only the layers that are known for this repository. Errors wrap ErrNotFound, ErrDenied or
// ErrUnavailable, and say what to do.
type Upstream interface {
	// Known returns the size of a layer that the repository may serve. It does not use the network.
	Known(ctx context.Context, repository, digest string) (size int64, err error)
	// Stat is Known, but asks the other registry whether it still has the layer.
	Stat(ctx context.Context, repository, digest string) (size int64, err error)
	// Open opens a layer. The caller closes it.
	Open(ctx context.Context, repository, digest string) (Blob, error)
}

// Blob is an open blob.
type Blob interface {
	Size() int64 // bytes
	// Section returns a reader of the bytes [first, end). The reader waits for bytes that have not
	// arrived yet. It returns the blob's last byte only after the digest of the whole blob was
	// checked.
	Section(first, end int64) io.Reader
	io.Closer
}

// ErrDenied marks errors about blobs that another registry does not let the hub read.
var ErrDenied = errors.New("the other registry denies access")

// whole reads a blob from its beginning to its end.
type whole struct {
	io.Reader
	io.Closer
}

// known is Upstream.Known, which finds nothing if there is no upstream.
func (r *Registry) known(ctx context.Context, repository, digest string) (int64, error) {
	if r.upstream == nil {
		return 0, ErrNotFound
	}
	return r.upstream.Known(ctx, repository, digest)
}

// present is Upstream.Stat, which finds nothing if there is no upstream.
func (r *Registry) present(ctx context.Context, repository, digest string) (int64, error) {
	if r.upstream == nil {
		return 0, ErrNotFound
	}
	return r.upstream.Stat(ctx, repository, digest)
}

// serveUpstream answers a request for a blob that is not stored: the repository may read the blob
// upstream, or the blob was released. It reports whether it has answered.
func (r *Registry) serveUpstream(w http.ResponseWriter, req *http.Request, repository, blob string) bool {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		return false
	}
	ctx := req.Context()
	_, unknown := r.known(ctx, repository, blob)
	if errors.Is(unknown, ErrNotFound) {
		released := r.Repository(repository).IsReleased(ctx, blob)
		if released {
			serveError(w, errReleased)
		}
		return released
	}
	stored, err := r.Repository(repository).Stores(ctx, blob)
	if stored {
		return false
	}
	if err == nil {
		err = unknown
	}
	var size int64
	var body Blob
	if err == nil && req.Method == http.MethodHead {
		size, err = r.upstream.Stat(ctx, repository, blob)
	} else if err == nil {
		if body, err = r.upstream.Open(ctx, repository, blob); err == nil {
			size = body.Size()
		}
	}
	if err != nil {
		r.log.Warn("cannot read a layer from another registry", "repository", repository, "blob", blob,
			"err", report.Logged(err))
		serveError(w, err)
		return true
	}
	if body != nil {
		defer body.Close()
	}
	ServeBlob(w, req, blob, body, size)
	return true
}

// ServeBlob answers with a blob of a size, or the range of it that the request wants. It breaks the
// connection if the blob cannot be read to its end. body is nil for a HEAD request.
func ServeBlob(w http.ResponseWriter, req *http.Request, blob string, body Blob, size int64) {
	header := w.Header()
	header.Set("Docker-Content-Digest", blob)
	header.Set("ETag", `"`+blob+`"`)
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Accept-Ranges", "bytes")
	first, end, status := int64(0), size, http.StatusOK
	if text := req.Header.Get("Range"); text != "" && body != nil {
		if from, to, ok := parseRange(text, size); ok {
			first, end, status = from, to, http.StatusPartialContent
			header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, end-1, size))
		} else if from >= size {
			header.Set("Content-Range", fmt.Sprintf("bytes */%d", size))
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
	}
	header.Set("Content-Length", strconv.FormatInt(end-first, 10))
	w.WriteHeader(status)
	if body == nil {
		return
	}
	// The writer would read with a small buffer (io.ReaderFrom).
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, body.Section(first, end), make([]byte, uploadBuffer))
	if err != nil {
		panic(http.ErrAbortHandler) // the client must not take this for the whole
	}
}

// parseRange parses a header with one range of a blob: bytes=FIRST-[LAST], or bytes=-LENGTH. For
// other headers ok is false, and first is the beginning of the range, if that is known.
func parseRange(text string, size int64) (first, end int64, ok bool) {
	from, to, dash := strings.Cut(strings.TrimPrefix(text, "bytes="), "-")
	if !dash || !strings.HasPrefix(text, "bytes=") || strings.Contains(to, ",") {
		return 0, 0, false
	}
	if from == "" {
		length, err := strconv.ParseInt(to, 10, 64)
		return max(size-length, 0), size, err == nil && length > 0
	}
	first, err := strconv.ParseInt(from, 10, 64)
	if err != nil || first < 0 || first >= size {
		return first, 0, false
	}
	if to == "" {
		return first, size, true
	}
	last, err := strconv.ParseInt(to, 10, 64)
	if err != nil || last < first {
		return 0, 0, false
	}
	return first, min(last, size-1) + 1, true
}

// serveError answers a request that has failed. Clients get the public part of the error.
func serveError(w http.ResponseWriter, err error) {
	code := errcode.ErrorCodeUnavailable
	switch {
	case errors.Is(err, ErrNotFound):
		code = errcode.ErrorCodeBlobUnknown
	case errors.Is(err, ErrDenied), errors.Is(err, ErrQuota):
		code = errcode.ErrorCodeDenied
	}
	_ = errcode.ServeJSON(w, code.WithMessage(report.Reason(err)))
}

// Stores reports whether the registry stores a blob of the repository.
func (r Repository) Stores(ctx context.Context, blob string) (bool, error) {
	repo, err := r.open(ctx)
	if err != nil {
		return false, err
	}
	_, err = repo.Blobs(ctx).Stat(ctx, digest.Digest(blob))
	if err = mapNotFound(err); err != nil && !errors.Is(err, ErrNotFound) {
		return false, fmt.Errorf("blob %s of %s: %w", blob, r.name, unavailable(err))
	}
	return err == nil, nil
}

// upstreamBlobs returns the sizes of those blobs of a manifest that are not stored and that find
// finds upstream. The library checks that the manifest's other blobs exist.
func (r Repository) upstreamBlobs(
	ctx context.Context, m Manifest, find func(ctx context.Context, repository, digest string) (int64, error),
) (map[digest.Digest]int64, error) {
	found := map[digest.Digest]int64{}
	for _, d := range blobsOf(m) {
		if _, err := r.registry.known(ctx, r.name, d.String()); errors.Is(err, ErrNotFound) {
			continue
		} else if err != nil {
			return nil, err
		}
		if stored, err := r.Stores(ctx, d.String()); err != nil || stored {
			if err != nil {
				return nil, err
			}
			continue
		}
		size, err := find(ctx, r.name, d.String())
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found[d] = size
	}
	return found, nil
}

// blobsOf returns the digests of a manifest's blobs. It returns none if the manifest is not valid,
// or is an index.
func blobsOf(m Manifest) (blobs []digest.Digest) {
	var parsed v1.Manifest
	if json.Unmarshal(m.Bytes, &parsed) != nil {
		return nil
	}
	for _, d := range append(parsed.Layers, parsed.Config) {
		if d.Digest.Validate() == nil {
			blobs = append(blobs, d.Digest)
		}
	}
	return blobs
}

// manifestsOf returns the digests of the manifests that an index names.
func manifestsOf(m Manifest) (manifests []digest.Digest) {
	var parsed v1.Index
	if json.Unmarshal(m.Bytes, &parsed) != nil {
		return nil
	}
	for _, d := range parsed.Manifests {
		if d.Digest.Validate() == nil {
			manifests = append(manifests, d.Digest)
		}
	}
	return manifests
}

// upstreamKey is the context key of the blobs that exist upstream, by digest, while a manifest is
// stored.
type upstreamKey struct{}

func withUpstream(ctx context.Context, blobs map[digest.Digest]int64) context.Context {
	return context.WithValue(ctx, upstreamKey{}, blobs)
}

// countUpstream makes the library's check of a manifest accept blobs that exist upstream.
var countUpstream = storage.BlobDescriptorServiceFactory(statterFactory{})

func init() { _ = registrymiddleware.RegisterOptions(countUpstream) } // for the app's registry; never fails

type statterFactory struct{}

func (statterFactory) BlobAccessController(next distribution.BlobDescriptorService) distribution.BlobDescriptorService {
	return statter{next}
}

// statter finds the blobs of a repository, and the blobs that withUpstream has put into the
// context.
type statter struct {
	distribution.BlobDescriptorService
}

func (s statter) Stat(ctx context.Context, id digest.Digest) (v1.Descriptor, error) {
	d, err := s.BlobDescriptorService.Stat(ctx, id)
	if errors.Is(err, distribution.ErrBlobUnknown) {
		blobs, _ := ctx.Value(upstreamKey{}).(map[digest.Digest]int64)
		if size, ok := blobs[id]; ok {
			return v1.Descriptor{MediaType: "application/octet-stream", Digest: id, Size: size}, nil
		}
	}
	return d, err
}
