package registry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"

	"lighter/wire"
)

// Events receives the changes that clients make. The repository is locked during the calls.
type Events interface {
	// Changing says that a tag is about to get a manifest, or that a tag, or a manifest with all
	// its tags, is about to be deleted. settled is called, without the lock, after Pushed or
	// Deleted has succeeded, or if nothing has changed. It reports whether the change stayed
	// announced until then; if not, others may have undone a part of it.
	Changing(ctx context.Context, repository, reference string) (settled func() bool, err error)
	// Lock locks the names of a repository against other changes.
	Lock(repository string) (unlock func())
	// Allow is asked before a manifest is stored. Its error wraps ErrQuota if there is no room for
	// it.
	Allow(ctx context.Context, repository, reference string, m Manifest) error
	// Pushed says that a tag points to a new manifest, or to the same again. After an error the
	// client is asked to push again.
	Pushed(ctx context.Context, repository, tag string) error
	// Deleted says that a tag, or a manifest with all its tags, was deleted.
	Deleted(ctx context.Context, repository, reference string) error
}

var (
	// manifestPath matches the path of a manifest: repository and reference.
	manifestPath = regexp.MustCompile(`^/v2/(.+)/manifests/([^/]+)$`)
	// blobPath matches the path of a blob: repository and digest.
	blobPath = regexp.MustCompile(`^/v2/(.+)/blobs/([^/]+:[^/]+)$`)
	// repositoryPath matches a path below a repository.
	repositoryPath = regexp.MustCompile(`^/v2/(.+)/(?:manifests|blobs|tags)/`)
)

const (
	// maxManifests bounds the bytes of the manifests that are pushed at a time: each is in memory
	// several times. Further requests wait for up to manifestsTimeout. A push also waits for up to
	// manifestsTimeout while its tag, its manifest or a blob of the manifest is being deleted.
	maxManifests     = 8 * (MaxManifest + 1)
	manifestsTimeout = 30 * time.Second
	// manifestTimeout bounds the upload of one manifest, which has its share of maxManifests
	// meanwhile.
	manifestTimeout = time.Minute
	// changeTimeout bounds a change of the storage while a repository is locked, and after that the
	// call of Events: other changes of the repository wait for the lock. The time is long enough to
	// make a stalled request to S3 again.
	changeTimeout = 2 * time.Minute
)

// nameable reports whether images of a repository can have names: the library accepts more
// repositories than wire.ParseName.
func nameable(repository string) bool {
	const tag = "t"
	ref := wire.Ref{Repository: repository, Tag: tag}
	parsed, err := wire.ParseName(ref.Name())
	return err == nil && parsed == ref
}

// RepositoryOf returns the repository that a request is about, by the request's path. It returns ""
// if the request is about no repository.
func RepositoryOf(path string) string {
	if found := repositoryPath.FindStringSubmatch(path); found != nil {
		return found[1]
	}
	return ""
}

// Handler serves the OCI distribution API below /v2/. It answers a change only after events has
// received the change. If the storage is not available, the answer is 503.
func (r *Registry) Handler(events Events) http.Handler {
	return r.retryable(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if path := repositoryPath.FindStringSubmatch(req.URL.Path); path != nil && !nameable(path[1]) {
			_ = errcode.ServeJSON(w, errcode.ErrorCodeNameInvalid.WithMessage(
				"names of repositories are lower case; a host's port follows an underscore, not a colon"))
			return
		}
		if err := r.touchAsked(req); err != nil {
			serveError(w, err)
			return
		}
		if path := blobPath.FindStringSubmatch(req.URL.Path); path != nil && r.serveUpstream(w, req, path[1], path[2]) {
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
		if err := r.Bounds.manifests.Acquire(wait, room); err != nil {
			_ = errcode.ServeJSON(w, errcode.ErrorCodeUnavailable.WithMessage(
				"too many manifests are being pushed; try again"))
			return
		}
		defer r.Bounds.manifests.Release(room)
		// The body is read before the lock is taken, as a slow client would hold it.
		body, err := ReadWithin(io.LimitReader(req.Body, room), manifestTimeout)
		if err != nil {
			_ = errcode.ServeJSON(w, errcode.ErrorCodeUnavailable.WithMessage("the manifest did not arrive completely"))
			return
		}
		r.changeName(req, events, path[1], path[2], body).send(w)
	}))
}

// maxPushes bounds how often the manifest of one push is stored, if others change the same name
// meanwhile.
const maxPushes = 3

// changeName stores or deletes a manifest, as a request asks, and returns the answer. It makes a
// push again if the push did not stay announced, unless the push is refused.
func (r *Registry) changeName(req *http.Request, events Events, repository, ref string, body []byte) *answerBuffer {
	for n := 1; ; n++ {
		answer := &answerBuffer{header: http.Header{}, status: http.StatusOK}
		lasted := r.tryChange(answer, req, events, repository, ref, body)
		if lasted || n >= maxPushes || req.Method != http.MethodPut || req.Context().Err() != nil {
			return answer
		}
	}
}

// tryChange makes a change. It reports whether the change stayed announced until it was complete:
// others delete nothing that an announced change needs. A change that is refused needs nothing.
func (r *Registry) tryChange(
	answer *answerBuffer, req *http.Request, events Events, repository, ref string, body []byte,
) (lasted bool) {
	settled, err := changing(req, events, repository, ref)
	if err != nil {
		r.log.Error("cannot announce a change of a name", "repository", repository, "reference", ref, "err", err)
		unavailableTo(answer, "the hub could not record the change; try again")
		return true
	}
	if req.Method == http.MethodPut {
		// Other registries are asked before the lock is taken, too.
		known, err := r.touchPushed(req.Context(), repository, ref, body)
		if err != nil {
			settled()
			serveError(answer, err)
			return true
		}
		req = req.WithContext(withUpstream(req.Context(), known))
	}
	err = r.store(answer, req, events, repository, ref, body)
	switch {
	case errors.Is(err, ErrNotFound) && req.Method == http.MethodPut: // the manifest or its tag was deleted just now
		return false
	case err != nil:
		return true
	}
	if answer.status >= 500 {
		return true
	}
	return settled() || answer.status >= 400
}

// touchPushed notes that a client relies on a manifest that it pushes, and on its tag. It may wait
// while one of them is being deleted, so the caller announces the change before. It returns the
// sizes of the manifest's blobs that exist upstream.
func (r *Registry) touchPushed(
	ctx context.Context, repository, ref string, body []byte,
) (map[digest.Digest]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, manifestsTimeout)
	defer cancel()
	to, m := r.Repository(repository), Manifest{Bytes: body}
	if err := to.Touch(ctx, m); err != nil {
		return nil, err
	}
	if _, err := digest.Parse(ref); err != nil {
		if err := to.TouchTag(ctx, ref); err != nil {
			return nil, err
		}
	}
	return to.upstreamBlobs(ctx, m, r.present)
}

// store lets the library answer the request, and then calls events. It returns the error of events,
// which the answer reports, too.
func (r *Registry) store(
	answer *answerBuffer, req *http.Request, events Events, repository, ref string, body []byte,
) error {
	defer events.Lock(repository)()
	ctx, cancel := context.WithTimeout(req.Context(), changeTimeout)
	defer cancel()
	req = req.WithContext(ctx)
	if req.Method == http.MethodPut {
		if err := allow(req, events, repository, ref, body); err != nil {
			serveError(answer, err)
			return nil
		}
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	r.app.ServeHTTP(answer, req)
	if answer.status >= 300 {
		return nil
	}
	err := notify(req, events, repository, ref)
	if err != nil {
		r.log.Error("cannot record a change of a name", "repository", repository, "reference", ref, "err", err)
		*answer = answerBuffer{header: http.Header{}}
		unavailableTo(answer, "the hub could not record the change; try again")
	}
	return err
}

// unavailableTo answers 503, with a message.
func unavailableTo(w http.ResponseWriter, message string) {
	_ = errcode.ServeJSON(w, errcode.ErrorCodeUnavailable.WithMessage(message))
}

// touchAsked notes that a client relies on a blob that it has found, mounts or has uploaded, or on
// a manifest that it has found. A HEAD request is answered even if this cannot be noted.
func (r *Registry) touchAsked(req *http.Request) error {
	ctx, query := req.Context(), req.URL.Query()
	switch req.Method {
	case http.MethodHead:
		var err error
		if path := blobPath.FindStringSubmatch(req.URL.Path); path != nil {
			if stored, statErr := r.Repository(path[1]).Stores(ctx, path[2]); statErr == nil && stored {
				err = r.touch(ctx, path[2])
			}
		} else if path := manifestPath.FindStringSubmatch(req.URL.Path); path != nil && strings.Contains(path[2], ":") {
			err = r.Repository(path[1]).touchFound(ctx, path[2])
		}
		if err != nil {
			r.log.Warn("cannot note that a client relies on a blob", "err", err)
		}
	case http.MethodPost:
		if mount := query.Get("mount"); mount != "" {
			return r.touch(ctx, mount)
		}
	case http.MethodPut:
		if uploaded := query.Get("digest"); uploaded != "" {
			return r.touch(ctx, uploaded)
		}
	}
	return nil
}

// ReadWithin reads a body to its end. It fails if that takes longer than limit.
func ReadWithin(body io.Reader, limit time.Duration) ([]byte, error) {
	return io.ReadAll(&deadlineReader{body, time.Now().Add(limit)})
}

// deadlineReader is a reader that fails after its deadline. A Read that blocks is not interrupted.
type deadlineReader struct {
	io.Reader
	deadline time.Time
}

func (r *deadlineReader) Read(b []byte) (int, error) {
	if time.Now().After(r.deadline) {
		return 0, errors.New("the request body arrives too slowly")
	}
	return r.Reader.Read(b)
}

// changing calls events.Changing, unless the request pushes a manifest without a tag: a part of an
// index, which is pushed later, has no name.
func changing(req *http.Request, events Events, repository, ref string) (settled func() bool, err error) {
	if _, err := digest.Parse(ref); err == nil && req.Method == http.MethodPut {
		return func() bool { return true }, nil
	}
	return events.Changing(req.Context(), repository, ref)
}

// ErrQuota marks errors of manifests that would exceed a quota.
var ErrQuota = errors.New("denied")

func allow(req *http.Request, events Events, repository, reference string, body []byte) error {
	return events.Allow(req.Context(), repository, reference, Manifest{MediaType: req.Header.Get("Content-Type"),
		Digest: digest.FromBytes(body).String(), Bytes: body})
}

// notify calls events. It goes on if the client has disconnected, as the registry has changed.
func notify(req *http.Request, events Events, repository, ref string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(req.Context()), changeTimeout)
	defer cancel()
	if req.Method == http.MethodDelete {
		return events.Deleted(ctx, repository, ref)
	}
	if _, err := digest.Parse(ref); err == nil {
		return nil // a part of an index that is pushed later: it has no name
	}
	return events.Pushed(ctx, repository, ref)
}

// answerBuffer holds the answer about a manifest, which is short, until events has succeeded.
type answerBuffer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answerBuffer) Header() http.Header         { return a.header }
func (a *answerBuffer) WriteHeader(status int)      { a.status = status }
func (a *answerBuffer) Write(b []byte) (int, error) { return a.body.Write(b) }

func (a *answerBuffer) send(w http.ResponseWriter) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // the client may have disconnected
}
