package pull

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

const (
	maxPage  = 8 << 20 // bytes of one page of tags
	pageSize = 1000    // tags that are asked for at a time; registries may send fewer
)

// Tags returns the tags of the source's repository, from all pages of the registry's answer. If
// there are more than limit, the error says so. The error wraps ErrSource, and ErrGone if the
// registry does not have the repository.
func (s *Source) Tags(ctx context.Context, limit int) ([]string, error) {
	tags, err := s.tags(ctx, limit)
	if err != nil {
		err = markGone(err)
		return nil, fmt.Errorf("%w: list the tags of %s: %w", ErrSource, s.Repository(), err)
	}
	return tags, nil
}

func (s *Source) tags(ctx context.Context, limit int) (tags []string, err error) {
	repository := s.ref.Context()
	if s.plainHTTP {
		if repository, err = name.NewRepository(repository.Name(), name.Insecure); err != nil {
			return nil, err
		}
	}
	bounded := remote.WithTransport(boundedPages{s.client.Transport})
	puller, err := remote.NewPuller(bounded, remote.WithPageSize(pageSize))
	if err != nil {
		return nil, err
	}
	pages, err := puller.Lister(ctx, repository)
	for n := 0; err == nil && pages.HasNext(); n++ {
		next, cancel := context.WithTimeout(ctx, smallTimeout)
		var page *remote.Tags
		if page, err = pages.Next(next); err == nil {
			tags = append(tags, page.Tags...)
		}
		cancel()
		if len(tags) > limit || n > limit {
			err = fmt.Errorf("there are more than %d", limit)
		}
	}
	return tags, err
}

// boundedPages bounds the bytes of each answer.
type boundedPages struct{ next http.RoundTripper }

// RoundTrip sends a request.
func (b boundedPages) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := b.next.RoundTrip(req)
	if err == nil {
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(res.Body, maxPage), res.Body}
	}
	return res, err
}
