package pullthrough

import (
	"context"
	"fmt"
	"net/http"

	"github.com/opencontainers/go-digest"

	"lighter/hub/pull"
	"lighter/hub/registry"
)

// maxSizes bounds the blobs whose sizes are remembered, of some 200 bytes each.
const maxSizes = 65_536

func (s *Service) serveBlob(w http.ResponseWriter, rd *reader, domain *Domain) error {
	ctx := rd.Context()
	if _, err := digest.Parse(rd.which); err != nil {
		return fmt.Errorf("%w: %w", errMissing, err)
	}
	if err := s.permit(ctx, rd); err != nil {
		return err
	}
	defer s.pulls.transfer(rd.repository)()
	if stored, err := domain.Registry.Repository(rd.own).Stores(ctx, rd.which); err == nil && stored {
		s.count(kept)
		serveOwn(w, rd, domain)
		return nil
	}
	size, err := s.sizeOf(ctx, rd)
	if err != nil {
		return err
	}
	if rd.Method == http.MethodHead {
		registry.ServeBlob(w, rd.Request, rd.which, nil, size)
		return nil
	}
	body, err := domain.Pass(ctx, rd.repository, rd.which, size, s.open(rd))
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return s.judge(rd, err)
	}
	defer body.Close()
	s.count(passed)
	registry.ServeBlob(w, rd.Request, rd.which, body, size)
	return nil
}

// sizeOf returns the size of a blob. A manifest that was read before says it.
func (s *Service) sizeOf(ctx context.Context, rd *reader) (size int64, err error) {
	key := rd.repository + "@" + rd.which
	if size, ok := s.sizes.Get(key); ok {
		return size, nil
	}
	err = s.ask(ctx, rd, "size "+rd.which, func(ctx context.Context, from *pull.Source) error {
		size, err := from.BlobSize(ctx, rd.which)
		if err == nil {
			s.sizes.Add(key, size)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	if size, ok := s.sizes.Get(key); ok {
		return size, nil
	}
	return 0, fmt.Errorf("%w: too many blobs are read", errUnavailable)
}
