package serve

import (
	"fmt"
	"io"
	"net/http"
	"slices"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/hub/catalog"
	wire "lighter/store/hub"
)

func (s *Server) postTrace(w http.ResponseWriter, req *http.Request) error {
	tree, err := chunk.ParseID(req.PathValue("tree"))
	if err != nil {
		return invalid(err)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, trace.MaxBytes))
	if err != nil {
		return invalid(err)
	}
	if err := s.starts.Take(req.Context(), tree, body); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) getTraces(w http.ResponseWriter, req *http.Request) error {
	images, err := s.startable(req)
	if err != nil {
		return err
	}
	answer := make([]wire.Starts, len(images)) // never null
	for i, image := range images {
		if answer[i], err = s.starts.Describe(req.Context(), image); err != nil {
			return err
		}
	}
	return sendJSON(w, answer)
}

func (s *Server) exportTraces(w http.ResponseWriter, req *http.Request) error {
	image, err := s.one(req)
	if err != nil {
		return err
	}
	text, err := s.starts.Export(req.Context(), image.Tree)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Cache-Control", "no-cache")
	_, _ = w.Write(text) // a client that is gone needs no answer
	return nil
}

func (s *Server) importTraces(w http.ResponseWriter, req *http.Request) error {
	image, err := s.one(req)
	if err != nil {
		return err
	}
	if err := s.starts.Import(req.Context(), image.Tree, http.MaxBytesReader(w, req.Body, trace.MaxText)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// startable lists the images that the request names which are ready, of one
// platform if it gives one.
func (s *Server) startable(req *http.Request) ([]catalog.Image, error) {
	images, err := s.named(req, true)
	if err != nil {
		return nil, err
	}
	platform := req.URL.Query().Get("platform")
	images = slices.DeleteFunc(images, func(i catalog.Image) bool {
		return i.State != wire.StateReady || platform != "" && i.Platform != platform
	})
	if len(images) == 0 {
		return nil, fmt.Errorf("image %s that is ready: %w", req.URL.Query().Get("name"), catalog.ErrNotFound)
	}
	return images, nil
}

// one returns the one image that the request names.
func (s *Server) one(req *http.Request) (catalog.Image, error) {
	images, err := s.startable(req)
	if err != nil {
		return catalog.Image{}, err
	}
	if len(images) > 1 {
		return catalog.Image{}, invalid(fmt.Errorf("the name stands for %d images: say of which platform", len(images)))
	}
	return images[0], nil
}
