package admin

import (
	"context"
	"errors"
	"net/http"

	"lighter/format/chunk"
	"lighter/hub/answer"
	"lighter/wire"
)

// Holders shows and forgets the nodes and mirrors that have reported what they have.
type Holders interface {
	List(ctx context.Context) ([]wire.Holder, error)
	// Of returns the holders of any of the trees.
	Of(ctx context.Context, trees []chunk.ID) ([]wire.Holder, error)
	// Forget forgets the holder with an ID in the form that List returns.
	Forget(ctx context.Context, id string) error
}

func (s *Server) getHolders(_ http.ResponseWriter, req *http.Request) (any, error) {
	if req.URL.Query().Get("name") == "" {
		return s.Holders.List(req.Context())
	}
	images, err := s.named(req)
	if err != nil {
		return nil, err
	}
	var trees []chunk.ID
	for _, image := range images {
		if !image.Tree.IsZero() {
			trees = append(trees, image.Tree)
		}
	}
	return s.Holders.Of(req.Context(), trees)
}

func (s *Server) deleteHolder(w http.ResponseWriter, req *http.Request) error {
	id := req.URL.Query().Get("holder")
	if id == "" {
		return answer.Invalid(errors.New("holder is missing"))
	}
	if err := s.Holders.Forget(req.Context(), id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
