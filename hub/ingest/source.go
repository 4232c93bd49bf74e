package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/registry"
	"lighter/wire"
)

// source is an image in another registry.
type source struct {
	ref    name.Reference
	client *http.Client
}

// repository is HOST[:PORT]/PATH, as containerd writes it: Docker Hub is docker.io.
func (s *source) repository() string {
	repository := s.ref.Context()
	if repository.RegistryStr() == name.DefaultRegistry {
		return "docker.io/" + repository.RepositoryStr()
	}
	return repository.RegistryStr() + "/" + repository.RepositoryStr()
}

const (
	dialTimeout   = 10 * time.Second
	headerTimeout = 30 * time.Second
	smallTimeout  = 60 * time.Second // for a login, a manifest or a config as a whole
	blobTries     = 5
	retryPause    = 500 * time.Millisecond
)

// A blob is asked for again when less than stallBytes of it come in a
// stallWindow: others wait for their turn to be copied.
const (
	stallBytes  = 64 << 10
	stallWindow = 60 * time.Second
)

// parseSource reads docker://HOST/REPO:TAG as skopeo does, and returns the name
// that the image gets if it is given none.
func parseSource(text string) (ref name.Reference, imageName string, err error) {
	bare, ok := strings.CutPrefix(text, "docker://")
	if !ok {
		return nil, "", fmt.Errorf("%q is not a source that the hub reads: want docker://HOST/REPO:TAG", text)
	}
	named, err := reference.ParseNormalizedNamed(bare)
	if err != nil {
		return nil, "", fmt.Errorf("source %q: %w", text, err)
	}
	imageName = reference.TagNameOnly(named).String()
	ref, err = name.ParseReference(imageName)
	if err != nil {
		return nil, "", fmt.Errorf("source %q: %w", text, err)
	}
	return ref, imageName, nil
}

// openSource reaches the registry of ref, with the credentials of add. Registries that
// are named need no public address.
func openSource(ctx context.Context, named []string, ref name.Reference, add wire.Add) (*source, error) {
	host := ref.Context().Registry
	if add.PlainHTTP {
		var err error
		if host, err = name.NewRegistry(host.Name(), name.Insecure); err != nil {
			return nil, fmt.Errorf("registry %s: %w", ref.Context().RegistryStr(), err)
		}
	}
	auth := authn.Anonymous
	if login := (authn.AuthConfig{Username: add.Username, Password: add.Password,
		IdentityToken: add.Token, RegistryToken: add.RegistryToken}); login != (authn.AuthConfig{}) {
		auth = authn.FromConfig(login)
	}
	ctx, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	pull := ref.Context().Scope(transport.PullScope)
	through, err := transport.NewWithContext(ctx, host, auth, transport.NewUserAgent(newOutward(named, add.PlainHTTP), "lighter"), []string{pull})
	if err != nil {
		return nil, fmt.Errorf("registry %s: %w", host.RegistryStr(), firstLine{err})
	}
	return &source{ref: ref, client: &http.Client{Transport: through}}, nil
}

// firstLine is an error without its further lines, in which the library quotes what a
// token server answers.
type firstLine struct{ error }

func (f firstLine) Error() string {
	line, _, _ := strings.Cut(f.error.Error(), "\n")
	return line
}

func (f firstLine) Unwrap() error { return f.error }

// get asks for something of the source's repository, from offset on.
func (s *source) get(ctx context.Context, kind, which string, offset int64) (*http.Response, error) {
	repository := s.ref.Context()
	url := fmt.Sprintf("%s://%s/v2/%s/%s/%s", repository.Scheme(), repository.RegistryStr(), repository.RepositoryStr(), kind, which)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	want := http.StatusOK
	if offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		want = http.StatusPartialContent
	}
	if kind == "manifests" {
		req.Header.Set("Accept", strings.Join(manifestTypes, ", "))
	}
	res, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	if err := transport.CheckError(res, want); err != nil {
		res.Body.Close()
		return nil, err
	}
	return res, nil
}

// Manifest returns a manifest by tag or digest.
func (s *source) Manifest(ctx context.Context, which string) (registry.Manifest, error) {
	m, err := s.manifest(ctx, which)
	if err != nil {
		return m, fmt.Errorf("manifest of %s: %w", s.ref, err)
	}
	return m, nil
}

func (s *source) manifest(ctx context.Context, which string) (registry.Manifest, error) {
	ctx, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	res, err := s.get(ctx, "manifests", which, 0)
	if err != nil {
		return registry.Manifest{}, err
	}
	defer res.Body.Close()
	b, err := readAtMost(res.Body, registry.MaxManifest)
	if err != nil {
		return registry.Manifest{}, err
	}
	mediaType, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
	m := registry.Manifest{MediaType: strings.TrimSpace(mediaType), Digest: digest.FromBytes(b).String(), Bytes: b}
	if !slices.Contains(manifestTypes, m.MediaType) {
		return m, fmt.Errorf("what comes is of type %q, which is none of a manifest", m.MediaType)
	}
	if strings.HasPrefix(which, "sha256:") && which != m.Digest {
		return m, fmt.Errorf("what came for %s has the digest %s", which, m.Digest)
	}
	return m, nil
}

// Config returns a config, whose digest it checks.
func (s *source) Config(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	res, err := s.get(ctx, "blobs", d.Digest.String(), 0)
	if err != nil {
		return nil, fmt.Errorf("config of %s: %w", s.ref, err)
	}
	defer res.Body.Close()
	b, err := readAtMost(res.Body, d.Size)
	if err == nil && digest.FromBytes(b) != d.Digest {
		err = errors.New("its bytes do not have its digest")
	}
	if err != nil {
		return nil, fmt.Errorf("config of %s: %w", s.ref, err)
	}
	return b, nil
}

func readAtMost(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("longer than the limit of %d bytes", limit)
	}
	return b, err
}

// blobReader reads a blob and goes on where it was when the connection breaks or
// is too slow.
type blobReader struct {
	source *source
	ctx    context.Context // of the one call that reads the blob
	digest string
	read   func(n int)   // is told of progress
	window time.Duration // in which stallBytes have to come
	pause  time.Duration // before the second try; doubles

	body   io.ReadCloser
	stop   context.CancelCauseFunc // ends the request that body belongs to
	stall  *time.Timer
	cause  func() error // why it was ended, if it was
	offset int64
	steady int64 // offset at which stallBytes were last counted from
	tries  int
}

var errStalled = fmt.Errorf("it stalls: less than %d KiB in %d s", stallBytes>>10, int(stallWindow.Seconds()))

// Read reads on, over at most blobTries connections that bring little.
func (b *blobReader) Read(p []byte) (int, error) {
	for {
		if b.body == nil {
			if err := b.open(); err != nil {
				return 0, err
			}
		}
		n, err := b.body.Read(p)
		b.offset += int64(n)
		b.read(n)
		if b.offset-b.steady >= stallBytes {
			b.steady, b.tries = b.offset, 0
			b.stall.Reset(b.window)
		}
		if err == nil && n > 0 || err == io.EOF {
			return n, err
		}
		if err != nil {
			err = cmp.Or(b.cause(), err)
			b.Close()
			err = b.failed(err)
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (b *blobReader) open() error {
	for {
		ctx, stop := context.WithCancelCause(b.ctx)
		stall := time.AfterFunc(b.window, func() { stop(errStalled) })
		res, err := b.source.get(ctx, "blobs", b.digest, b.offset)
		if err == nil {
			b.body, b.stop, b.stall = res.Body, stop, stall
			b.cause = func() error { return context.Cause(ctx) }
			return nil
		}
		stall.Stop()
		err = cmp.Or(context.Cause(ctx), err)
		stop(nil)
		var said *transport.Error
		if errors.As(err, &said) && !said.Temporary() {
			return err
		}
		if err := b.failed(err); err != nil {
			return err
		}
	}
}

// failed waits before the next try, or returns why there is none.
func (b *blobReader) failed(err error) error {
	if b.ctx.Err() != nil {
		return b.ctx.Err()
	}
	if b.tries++; b.tries >= blobTries {
		return fmt.Errorf("%d tries: %w", b.tries, err)
	}
	select {
	case <-time.After(b.pause << (b.tries - 1)):
		return nil
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
}

// Close ends the request that is under way.
func (b *blobReader) Close() {
	if b.body != nil {
		b.stall.Stop()
		b.stop(nil)
		_ = b.body.Close() // nothing is lost with it
		b.body = nil
	}
}
