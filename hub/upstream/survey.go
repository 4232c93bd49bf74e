package upstream

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"lighter/hub/catalog"
	"lighter/hub/pull"
)

// Survey asks other registries whether they have layers, of which there may be many. It opens each
// repository once. After a repository has denied access, Survey does not ask it again. The same
// holds for a registry that cannot be reached, or is unavailable or overloaded. Survey is not safe
// for concurrent use.
type Survey struct {
	reader  *Reader
	sources map[repository]*opened
	skipped map[string]error // by host: why it is not asked any more
}

// repository is a repository of another registry.
type repository struct {
	name      string
	plainHTTP bool
}

// opened is a source, with the error if it cannot be opened or has denied access.
type opened struct {
	*pull.Source
	err error
}

// Survey begins a survey.
func (r *Reader) Survey() *Survey {
	return &Survey{reader: r, sources: map[repository]*opened{}, skipped: map[string]error{}}
}

// Find looks for a layer in the registries from which in, a repository of the hub's registry, may
// serve it. It returns an error unless one of them has the layer now.
func (s *Survey) Find(ctx context.Context, in, digest string) error {
	return s.reader.first(ctx, in, digest, func(u catalog.Upstream) error {
		host, _, _ := strings.Cut(u.Repository, "/")
		if err := s.skipped[host]; err != nil {
			return err
		}
		source := s.open(ctx, u)
		err := source.err
		if err == nil {
			err = source.Has(ctx, digest, u.Size)
		}
		switch failed := (*transport.Error)(nil); {
		case err == nil || ctx.Err() != nil:
		case errors.As(err, &failed):
			switch code := failed.StatusCode; {
			case code >= 500 || code == http.StatusTooManyRequests:
				s.skipped[host] = err
			case code == http.StatusUnauthorized || code == http.StatusForbidden:
				source.err = err
			}
		case source.err != nil || errors.As(err, new(*url.Error)):
			s.skipped[host] = err
		}
		return err
	})
}

// open opens the source of a layer, unless that was done before.
func (s *Survey) open(ctx context.Context, u catalog.Upstream) *opened {
	at := repository{u.Repository, u.PlainHTTP}
	if s.sources[at] == nil {
		source, err := s.reader.Source(ctx, u.Repository, u.PlainHTTP)
		s.sources[at] = &opened{source, err}
	}
	return s.sources[at]
}
