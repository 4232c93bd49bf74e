package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/hub/ingest"
	"lighter/hub/objects"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

// What a cache may do: with what is named by its digest, with hints, which cost a
// request more when they are old, with locations, of which there are better ones
// soon after the first starts of an image, and with look-ups, for as long as a node
// believes itself what it was told: many nodes that pull at the same time ask a
// cache, and the hub once.
const (
	forever = "public, max-age=31536000, immutable"
	anHour  = "public, max-age=3600"
	aMinute = "public, max-age=60"
	aMoment = "max-age=5"
)

// send sends an object whole: caches keep a 200, not a 206, so ranges are not
// offered. tag names its bytes, if anything does.
func (s *Server) send(w http.ResponseWriter, req *http.Request, o *objects.Object, cache, tag string) {
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Cache-Control", cache)
	if tag != "" {
		h.Set("ETag", `"`+tag+`"`)
		// A cache that asks because a node does not believe its copy (no-cache) needs another.
		if req.Header.Get("If-None-Match") == `"`+tag+`"` && req.Header.Get("Cache-Control") != "no-cache" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	h.Set("Content-Length", strconv.FormatInt(o.Size, 10))
	if req.Method == http.MethodHead {
		return
	}
	if _, err := o.WriteTo(w); err != nil {
		// Too late for another status: the client sees that bytes are missing.
		s.log.Debug("send an object", "path", req.URL.Path, "cause", err)
	}
}

// sendJSON sends what no cache may keep.
func sendJSON(w http.ResponseWriter, v any) error { return sendCached(w, v, "no-cache") }

func sendCached(w http.ResponseWriter, v any, cache string) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", cache)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)+1))
	_, _ = w.Write(append(b, '\n')) // a client that is gone needs no answer
	return nil
}

var (
	errNoPath    = errors.New("no such path, or not with this method")
	errMediaType = errors.New("the body has to be of type application/json")
)

// wantJSON refuses a body that a form of a web page can send: a page needs leave for
// others.
func wantJSON(req *http.Request) error {
	if kind, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return errMediaType
	}
	return nil
}

func invalid(err error) error { return fmt.Errorf("%w: %w", report.ErrInvalid, err) }

// statusOf is the one place where errors become statuses.
func statusOf(err error) int {
	switch {
	case errors.Is(err, catalog.ErrNotFound), errors.Is(err, objects.ErrNotFound), errors.Is(err, registry.ErrNotFound),
		errors.Is(err, chunk.ErrNotFound), errors.Is(err, errNoPath):
		return http.StatusNotFound
	case errors.As(err, new(*http.MaxBytesError)):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errMediaType):
		return http.StatusUnsupportedMediaType
	case errors.Is(err, report.ErrInvalid):
		return http.StatusBadRequest
	case errors.Is(err, catalog.ErrFull):
		return http.StatusTooManyRequests
	case errors.Is(err, report.ErrBusy), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable
	case errors.Is(err, ingest.ErrSource):
		return http.StatusBadGateway
	}
	return http.StatusInternalServerError
}

// sendError ends the handling of an error.
func (s *Server) sendError(w http.ResponseWriter, req *http.Request, err error) {
	status := statusOf(err)
	if status == http.StatusInternalServerError {
		s.log.Error("answer a request", "method", req.Method, "path", req.URL.Path, "cause", err)
	}
	b, _ := json.Marshal(map[string]string{"error": err.Error()}) // two strings
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Del("ETag")
	if status == http.StatusNotFound && !errors.Is(err, errNoPath) {
		h.Set(wire.MissingHeader, "1")
	}
	h.Set("Content-Length", strconv.Itoa(len(b)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}

func parseNumber(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || strconv.FormatUint(n, 10) != s {
		return 0, fmt.Errorf("%q is not the number of a unit", s)
	}
	return uint32(n), nil
}
