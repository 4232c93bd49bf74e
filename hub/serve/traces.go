package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/hub/catalog"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/hub/startup"
	"lighter/wire"
)

func (s *Server) postTrace(w http.ResponseWriter, req *http.Request) error {
	tree, err := chunk.ParseID(req.PathValue("tree"))
	if err != nil {
		return invalid(err)
	}
	body, done, err := s.readBody(w, req, trace.MaxBytes)
	if err != nil {
		return err
	}
	defer done()
	if err := s.starts.Take(req.Context(), tree, s.senderOf(req), body); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// senderOf names who sends a trace. Who asks from this machine is nobody in particular,
// but for a proxy: what it hands on, and does not say for whom, is one sender's.
func (s *Server) senderOf(req *http.Request) string {
	client := s.clientOf(req)
	if client.IsLoopback() && req.Header.Get("X-Forwarded-For") != "" {
		return client.String()
	}
	return startup.SenderOf(client)
}

// clientOf returns the address from which a request comes, as the proxies say that
// are believed. A request over a Unix socket has none.
func (s *Server) clientOf(req *http.Request) netip.Addr {
	from, err := netip.ParseAddrPort(req.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	client := from.Addr().Unmap()
	said := strings.Split(strings.Join(req.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(said) - 1; i >= 0 && s.believes(client); i-- {
		before, err := netip.ParseAddr(strings.TrimSpace(said[i]))
		if err != nil {
			break
		}
		client = before.Unmap()
	}
	return client
}

// believes tells whether there is a proxy at an address that is believed.
func (s *Server) believes(address netip.Addr) bool {
	return slices.ContainsFunc(s.proxies, func(p netip.Prefix) bool { return p.Contains(address) })
}

func (s *Server) getTraces(w http.ResponseWriter, req *http.Request) error {
	images, err := s.startable(req)
	if err != nil {
		return err
	}
	answer := make([]wire.Starts, len(images)) // never null
	for i, image := range images {
		if answer[i], err = s.starts.Describe(req.Context(), image); err != nil {
			return later(w, err)
		}
	}
	return sendJSON(w, answer)
}

// later says when to ask again, if the hub is busy. Nodes are not told so: they would
// leave the hub alone with all that they ask for.
func later(w http.ResponseWriter, err error) error {
	if errors.Is(err, report.ErrBusy) {
		w.Header().Set("Retry-After", "5")
	}
	return err
}

func (s *Server) exportTraces(w http.ResponseWriter, req *http.Request) error {
	image, err := s.one(req)
	if err != nil {
		return err
	}
	text, err := s.starts.Export(req.Context(), image.Tree)
	if err != nil {
		return later(w, err)
	}
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Cache-Control", "no-cache")
	_, _ = w.Write(text) // a client that is gone needs no answer
	return nil
}

func (s *Server) importTraces(w http.ResponseWriter, req *http.Request) error {
	if err := wantJSON(req); err != nil { // clients say so of text, too
		return err
	}
	image, err := s.one(req)
	if err != nil {
		return err
	}
	text, done, err := s.readBody(w, req, trace.MaxText)
	if err != nil {
		return err
	}
	defer done()
	if err := s.starts.Import(req.Context(), image.Tree, text); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) deleteTraces(w http.ResponseWriter, req *http.Request) error {
	image, err := s.one(req)
	if err != nil {
		return err
	}
	forgotten, err := s.starts.Forget(req.Context(), image.Tree, req.URL.Query().Get("workload"))
	if err != nil {
		return err
	}
	s.log.Info("what is known of the starts of an image was removed", "image", image.Name, "workloads", forgotten.Workloads, "waiting", forgotten.Waiting)
	return sendJSON(w, forgotten)
}

const (
	// maxBodies bounds the traces that are held at a time, in bytes: thousands of
	// nodes may report at once. Others wait for bodiesTimeout.
	maxBodies     = 2 * trace.MaxText
	bodiesTimeout = 5 * time.Second
	// bodyTimeout is how long one may take to come: it has others' place.
	bodyTimeout = time.Minute
)

// readBody reads a body of at most limit bytes when there is room for it. done
// gives the room back, unless there is an error.
func (s *Server) readBody(w http.ResponseWriter, req *http.Request, limit int64) (body []byte, done func(), err error) {
	room := limit
	if req.ContentLength >= 0 {
		room = min(room, req.ContentLength)
	}
	wait, cancel := context.WithTimeout(req.Context(), bodiesTimeout)
	defer cancel()
	if err := s.bodies.Acquire(wait, room); err != nil {
		return nil, nil, report.ErrBusy
	}
	done = func() { s.bodies.Release(room) }
	body, err = registry.ReadWithin(http.MaxBytesReader(w, req.Body, limit), bodyTimeout)
	if err != nil {
		done()
		return nil, nil, invalid(err)
	}
	return body, done, nil
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
		return nil, fmt.Errorf("image %s that is ready: %w", strings.TrimSpace(req.URL.Query().Get("name")+" "+platform), catalog.ErrNotFound)
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
