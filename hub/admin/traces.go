package admin

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"lighter/format/trace"
	"lighter/hub/answer"
	"lighter/hub/catalog"
	"lighter/hub/report"
	"lighter/wire"
)

func (s *Server) getTraces(w http.ResponseWriter, req *http.Request) (any, error) {
	images, err := s.readyImages(req)
	if err != nil {
		return nil, err
	}
	list := make([]wire.Starts, len(images)) // never null
	for i, image := range images {
		if list[i], err = s.Starts.Describe(req.Context(), image); err != nil {
			return nil, retryLater(w, err)
		}
	}
	return list, nil
}

func (s *Server) exportTraces(w http.ResponseWriter, req *http.Request) error {
	image, err := s.readyImage(req)
	if err != nil {
		return err
	}
	text, err := s.Starts.Export(req.Context(), image.Tree)
	if err != nil {
		return retryLater(w, err)
	}
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Cache-Control", uncached)
	_, _ = w.Write(text) // an error means that the client has gone
	return nil
}

func (s *Server) importTraces(w http.ResponseWriter, req *http.Request) error {
	if err := answer.WantJSON(req); err != nil { // although the body is text: see WantJSON
		return err
	}
	image, err := s.readyImage(req)
	if err != nil {
		return err
	}
	text, release, err := s.Bodies.Read(w, req, trace.MaxText)
	if err != nil {
		return err
	}
	defer release()
	if err := s.Starts.Import(req.Context(), image.Tree, text); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) deleteTraces(_ http.ResponseWriter, req *http.Request) (any, error) {
	image, err := s.readyImage(req)
	if err != nil {
		return nil, err
	}
	forgotten, err := s.Starts.Forget(req.Context(), image.Tree, req.URL.Query().Get("workload"))
	if err != nil {
		return nil, err
	}
	s.Log.Info("traces removed", "image", image.Name, "workloads", forgotten.Workloads, "pending", forgotten.Waiting)
	return forgotten, nil
}

// retryLater adds a Retry-After header if the hub is busy. Only answers to users have this header:
// a node that gets it sends the hub no requests at all until that time has passed.
func retryLater(w http.ResponseWriter, err error) error {
	if errors.Is(err, report.ErrBusy) {
		w.Header().Set("Retry-After", "5")
	}
	return err
}

// readyImages returns the ready images that the request's name and platform select. If there are
// none, it returns an error.
func (s *Server) readyImages(req *http.Request) ([]catalog.Image, error) {
	images, err := s.named(req)
	if err != nil {
		return nil, err
	}
	platform := req.URL.Query().Get("platform")
	images = slices.DeleteFunc(images, func(i catalog.Image) bool {
		return i.State != wire.StateReady || platform != "" && i.Platform != platform
	})
	if len(images) == 0 {
		name := strings.TrimSpace(req.URL.Query().Get("name") + " " + platform)
		return nil, fmt.Errorf("ready image %s: %w", name, catalog.ErrNotFound)
	}
	return images, nil
}

// readyImage returns the one ready image that the request selects. If there are none or several, it
// returns an error.
func (s *Server) readyImage(req *http.Request) (catalog.Image, error) {
	images, err := s.readyImages(req)
	if err != nil {
		return catalog.Image{}, err
	}
	if len(images) > 1 {
		return catalog.Image{}, answer.Invalid(fmt.Errorf("the name stands for %d images: give the platform",
			len(images)))
	}
	return images[0], nil
}
