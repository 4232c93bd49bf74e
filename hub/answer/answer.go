// Package answer is what all handlers of the hub's HTTP API share: a router whose handlers return
// errors, the one place where errors become statuses (docs/wire.md), and JSON answers and request
// bodies within bounds.
//
// Errors are logged with the request's method and path only: query and headers may have secrets.
package answer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/semaphore"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/pull"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

// Mux routes requests about one domain to handlers that return errors. It answers unknown paths
// with JSON, too.
type Mux struct {
	mux   *http.ServeMux
	base  string   // the path below which the domain's API lies
	paths []string // of the routes
	log   *slog.Logger
}

// NewMux returns a router without routes for a domain.
func NewMux(domain string, log *slog.Logger) *Mux {
	return &Mux{mux: http.NewServeMux(), base: wire.Prefix + "/" + domain, log: log}
}

// Handle adds a route. path is relative to wire.Prefix/DOMAIN.
func (m *Mux) Handle(method, path string, handle func(http.ResponseWriter, *http.Request) error) {
	m.paths = append(m.paths, m.base+path)
	m.mux.HandleFunc(method+" "+m.base+path, func(w http.ResponseWriter, req *http.Request) {
		if err := handle(w, req); err != nil {
			m.sendError(w, req, err)
		}
	})
}

// Paths returns the paths of the routes, as patterns of http.ServeMux without a method.
func (m *Mux) Paths() []string { return m.paths }

// HandleJSON adds a route whose handler's result is sent as JSON, with a Cache-Control header.
func (m *Mux) HandleJSON(
	method, path, cache string, handle func(http.ResponseWriter, *http.Request) (any, error),
) {
	m.Handle(method, path, func(w http.ResponseWriter, req *http.Request) error {
		v, err := handle(w, req)
		if err != nil {
			return err
		}
		return JSON(w, cache, v)
	})
}

// JSON sends a value, with a Cache-Control header.
func JSON(w http.ResponseWriter, cache string, v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		send(w, http.StatusOK, cache, b)
	}
	return err
}

// ServeHTTP answers a request.
func (m *Mux) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if _, pattern := m.mux.Handler(req); pattern == "" {
		m.sendError(w, req, errNoPath)
		return
	}
	m.mux.ServeHTTP(w, req)
}

func (m *Mux) sendError(w http.ResponseWriter, req *http.Request, err error) {
	status := Status(err)
	if status == http.StatusInternalServerError || away.Is(err) {
		m.log.Error("request failed", "method", req.Method, "path", req.URL.Path, "err", err)
	}
	h := w.Header()
	h.Del("ETag")
	if status == http.StatusNotFound && !errors.Is(err, errNoPath) {
		h.Set(wire.MissingHeader, "1")
	}
	Error(w, status, report.Public(err))
}

// Error sends an error in the form that the API has for errors.
func Error(w http.ResponseWriter, status int, text string) {
	b, _ := json.Marshal(map[string]string{"error": text}) // strings always have a JSON form
	send(w, status, "no-store", b)
}

var (
	errNoPath    = errors.New("there is no such path, or it does not support this method")
	errMediaType = errors.New("the body has to be of type application/json")
)

// Status returns the HTTP status for an error.
func Status(err error) int {
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
	case errors.Is(err, registry.ErrQuota):
		return http.StatusForbidden
	case errors.Is(err, catalog.ErrFull), errors.Is(err, catalog.ErrTooMany), errors.Is(err, report.ErrSenderFull):
		return http.StatusTooManyRequests
	case errors.Is(err, report.ErrBusy), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		away.Is(err):
		return http.StatusServiceUnavailable
	case errors.Is(err, pull.ErrSource):
		return http.StatusBadGateway
	}
	return http.StatusInternalServerError
}

// Invalid marks an error as the client's mistake.
func Invalid(err error) error { return fmt.Errorf("%w: %w", report.ErrInvalid, err) }

// send sends a JSON text. It ignores errors: they mean that the client has gone.
func send(w http.ResponseWriter, status int, cache string, text []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", cache)
	h.Set("Content-Length", strconv.Itoa(len(text)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}

// WantJSON refuses a request whose body is not declared as JSON. A page of another web site cannot
// send that type, because the browser first asks the hub for permission (a CORS preflight).
func WantJSON(req *http.Request) error {
	if kind, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return errMediaType
	}
	return nil
}

const (
	// maxBodies bounds the bytes of all bodies in memory, since thousands of nodes may report at
	// once. Further requests wait up to bodiesTimeout.
	maxBodies     = 2 * trace.MaxText
	bodiesTimeout = 5 * time.Second
	// bodyTimeout bounds the receiving of one body.
	bodyTimeout = time.Minute
)

// Bodies reads request bodies into memory, within a bound for all of them.
type Bodies struct{ room *semaphore.Weighted }

// NewBodies returns a reader of bodies.
func NewBodies() *Bodies { return &Bodies{semaphore.NewWeighted(maxBodies)} }

// Read reads a body of at most limit bytes. The caller calls release when it no longer needs the
// body. If there is no room in time, the error is report.ErrBusy.
func (b *Bodies) Read(w http.ResponseWriter, req *http.Request, limit int64) (body []byte, release func(), err error) {
	room := limit
	if req.ContentLength >= 0 {
		room = min(room, req.ContentLength)
	}
	wait, cancel := context.WithTimeout(req.Context(), bodiesTimeout)
	defer cancel()
	if err := b.room.Acquire(wait, room); err != nil {
		return nil, nil, report.ErrBusy
	}
	release = func() { b.room.Release(room) }
	body, err = registry.ReadWithin(http.MaxBytesReader(w, req.Body, limit), bodyTimeout)
	if err != nil {
		release()
		return nil, nil, Invalid(err)
	}
	return body, release, nil
}
