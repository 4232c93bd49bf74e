package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"lighter/hub/answer"
	"lighter/hub/catalog"
	"lighter/wire"
)

// Wishlists keeps the images of lists.
type Wishlists interface {
	States(ctx context.Context) ([]wire.WishlistState, error)
	State(ctx context.Context, name string) (wire.WishlistState, error)
	// Add and Sync return the job that reads the list.
	Add(ctx context.Context, w wire.Wishlist) (catalog.Job, error)
	Sync(ctx context.Context, name string, confirmed bool) (catalog.Job, error)
	// Await waits until the job of a list has ended, and calls report for each step.
	Await(ctx context.Context, job int64, report func(wire.Progress) error) (*wire.WishlistResult, error)
	// Plan returns what the hub would do with a list, or with one that it has by that name. It
	// calls report for each step. If report fails, it ends early with its error.
	Plan(ctx context.Context, w wire.Wishlist, report func(wire.Progress) error) (*wire.WishlistResult, error)
	Remove(ctx context.Context, name string) error
}

// maxWishlist bounds a request's body with a list, in bytes: JSON makes a text longer.
const maxWishlist = 20 << 20

func (s *Server) getWishlists(_ http.ResponseWriter, req *http.Request) (any, error) {
	if name := req.URL.Query().Get("name"); name != "" {
		state, err := s.Wishlists.State(req.Context(), name)
		return []wire.WishlistState{state}, err
	}
	return s.Wishlists.States(req.Context())
}

// readWishlist reads the list that a request has.
func readWishlist(w http.ResponseWriter, req *http.Request) (list wire.Wishlist, err error) {
	if err := answer.WantJSON(req); err != nil {
		return list, err
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxWishlist)).Decode(&list); err != nil {
		return list, answer.Invalid(fmt.Errorf("parse the request: %w", err))
	}
	return list, nil
}

func (s *Server) postWishlist(w http.ResponseWriter, req *http.Request) (any, error) {
	list, err := readWishlist(w, req)
	if err != nil {
		return nil, err
	}
	j, err := s.Wishlists.Add(req.Context(), list)
	if err != nil {
		return nil, err
	}
	return s.describeJob(j)
}

func (s *Server) syncWishlist(_ http.ResponseWriter, req *http.Request) (any, error) {
	if err := answer.WantJSON(req); err != nil {
		return nil, err
	}
	query := req.URL.Query()
	j, err := s.Wishlists.Sync(req.Context(), query.Get("name"), query.Get("confirm") != "")
	if err != nil {
		return nil, err
	}
	return s.describeJob(j)
}

func (s *Server) awaitWishlist(w http.ResponseWriter, req *http.Request) error {
	job, err := awaitedJob(req)
	if err != nil {
		return err
	}
	p := newProgress(w)
	result, err := s.Wishlists.Await(req.Context(), job, p.send)
	return p.end(wire.Progress{Done: true, Wishlist: result}, err)
}

func (s *Server) planWishlist(w http.ResponseWriter, req *http.Request) error {
	list, err := readWishlist(w, req)
	if err != nil {
		return err
	}
	p := newProgress(w)
	result, err := s.Wishlists.Plan(req.Context(), list, p.send)
	return p.end(wire.Progress{Done: true, Wishlist: result}, err)
}

func (s *Server) deleteWishlist(w http.ResponseWriter, req *http.Request) error {
	if err := s.Wishlists.Remove(req.Context(), req.URL.Query().Get("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
