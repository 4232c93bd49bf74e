package registry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"

	"lighter/wire"
)

// Events is told what clients change, while the repository is locked.
type Events interface {
	// Lock keeps others from changing what the names in a repository stand for.
	Lock(repository string) (unlock func())
	// Pushed says that a tag points to another manifest, or to the same again.
	// An error goes back to the client, who will push again.
	Pushed(ctx context.Context, repository, tag string) error
	// Deleted says that a tag is gone, or a manifest with all its tags.
	Deleted(ctx context.Context, repository, reference string) error
}

var (
	// manifestPath matches the paths of manifests: repository and reference.
	manifestPath = regexp.MustCompile(`^/v2/(.+)/manifests/([^/]+)$`)
	// repositoryPath matches the paths of all that a repository has.
	repositoryPath = regexp.MustCompile(`^/v2/(.+)/(?:manifests|blobs|tags)/`)
)

const (
	// maxManifests bounds the manifests that are being pushed at the same time, in bytes:
	// each is in memory several times. Others wait for manifestsTimeout.
	maxManifests     = 8 * (MaxManifest + 1)
	manifestsTimeout = 30 * time.Second
	// manifestTimeout is how long one may take to come: it has others' room.
	manifestTimeout = time.Minute
)

// nameable tells whether the images of a repository have names: the registry
// takes more repositories than there are names for them.
func nameable(repository string) bool {
	const tag = "t"
	ref := wire.Ref{Repository: repository, Tag: tag}
	parsed, err := wire.ParseName(ref.Name())
	return err == nil && parsed == ref
}

// Handler serves the OCI distribution API below /v2/. What a client is told was
// done, events has taken note of.
func (r *Registry) Handler(events Events) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if path := repositoryPath.FindStringSubmatch(req.URL.Path); path != nil && !nameable(path[1]) {
			_ = errcode.ServeJSON(w, errcode.ErrorCodeNameInvalid.WithMessage("the hub wants lower case, and an underscore for the colon before a host's port"))
			return
		}
		path := manifestPath.FindStringSubmatch(req.URL.Path)
		if path == nil || req.Method != http.MethodPut && req.Method != http.MethodDelete {
			r.app.ServeHTTP(w, req)
			return
		}
		room := int64(MaxManifest + 1)
		if req.ContentLength >= 0 {
			room = min(room, req.ContentLength)
		}
		wait, cancel := context.WithTimeout(req.Context(), manifestsTimeout)
		defer cancel()
		if err := r.manifests.Acquire(wait, room); err != nil {
			w.Header().Set("Retry-After", "5")
			_ = errcode.ServeJSON(w, errcode.ErrorCodeUnavailable.WithMessage("too many manifests are being pushed; try again"))
			return
		}
		defer r.manifests.Release(room)
		// Read before it is locked: nobody waits for a client with it.
		body, err := ReadWithin(io.LimitReader(req.Body, room), manifestTimeout)
		if err != nil {
			_ = errcode.ServeJSON(w, errcode.ErrorCodeUnavailable.WithMessage("the manifest did not come whole"))
			return
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		defer events.Lock(path[1])()
		answer := &heldAnswer{header: http.Header{}, status: http.StatusOK}
		r.app.ServeHTTP(answer, req)
		if answer.status < 300 {
			if err := tell(req, events, path[1], path[2]); err != nil {
				r.log.Error("take note of a push", "repository", path[1], "reference", path[2], "cause", err)
				_ = errcode.ServeJSON(w, errcode.ErrorCodeUnavailable.WithMessage("the hub could not take note of it; try again"))
				return
			}
		}
		answer.send(w)
	})
}

// ReadWithin reads a body that has others' room, and fails if it takes longer to come.
func ReadWithin(body io.Reader, limit time.Duration) ([]byte, error) {
	return io.ReadAll(&timely{body, time.Now().Add(limit)})
}

// timely reads until it is too late.
type timely struct {
	io.Reader
	end time.Time
}

// Read reads, or fails if it is too late.
func (r *timely) Read(b []byte) (int, error) {
	if time.Now().After(r.end) {
		return 0, errors.New("the body takes too long to come")
	}
	return r.Reader.Read(b)
}

// tell goes on when the client is gone: what was pushed is there.
func tell(req *http.Request, events Events, repository, ref string) error {
	ctx := context.WithoutCancel(req.Context())
	if req.Method == http.MethodDelete {
		return events.Deleted(ctx, repository, ref)
	}
	if _, err := digest.Parse(ref); err == nil {
		return nil // a part of an index that comes later: no name, no image
	}
	return events.Pushed(ctx, repository, ref)
}

// heldAnswer keeps an answer about a manifest, which is short, until it is
// known to be true.
type heldAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *heldAnswer) Header() http.Header         { return a.header }
func (a *heldAnswer) WriteHeader(status int)      { a.status = status }
func (a *heldAnswer) Write(b []byte) (int, error) { return a.body.Write(b) }

func (a *heldAnswer) send(w http.ResponseWriter) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // a client that is gone needs no answer
}
