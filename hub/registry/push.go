package registry

import (
	"bytes"
	"context"
	"net/http"
	"regexp"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/opencontainers/go-digest"
)

// Events is told what clients change.
type Events interface {
	// Pushed says that a tag points to another manifest, or to the same again.
	// An error goes back to the client, who will push again.
	Pushed(ctx context.Context, repository, tag string) error
	// Deleted says that a tag is gone, or a manifest with all its tags.
	Deleted(ctx context.Context, repository, reference string) error
}

// manifestPath matches the paths of manifests: repository and reference.
var manifestPath = regexp.MustCompile(`^/v2/(.+)/manifests/([^/]+)$`)

// Handler serves the OCI distribution API below /v2/. What a client is told was
// done, events has taken note of.
func (r *Registry) Handler(events Events) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		path := manifestPath.FindStringSubmatch(req.URL.Path)
		if path == nil || req.Method != http.MethodPut && req.Method != http.MethodDelete {
			r.app.ServeHTTP(w, req)
			return
		}
		answer := &heldAnswer{header: http.Header{}, status: http.StatusOK}
		r.app.ServeHTTP(answer, req)
		if answer.status < 300 {
			if err := tell(req, events, path[1], path[2]); err != nil {
				r.log.Error("take note of a push", "repository", path[1], "reference", path[2], "error", err)
				_ = errcode.ServeJSON(w, errcode.ErrorCodeUnavailable.WithMessage("the hub could not take note of it; try again"))
				return
			}
		}
		answer.send(w)
	})
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
