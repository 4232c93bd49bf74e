// Package monitor serves a node's state to monitoring systems over HTTP: /metrics for Prometheus,
// /healthz and /readyz. It already answers while the mounts of a previous daemon are being
// recovered, and it answers until all other parts of the node are closed.
//
// If it fails, only monitoring is missing: the node continues to run.
package monitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"

	"lighter/node/fuse"
	"lighter/node/report"
	"lighter/socket"
)

// Bounds of the listener, which has few clients with short requests.
const (
	maxConns      = 64
	maxHeader     = 16 << 10         // bytes of a request's header
	readTimeout   = 10 * time.Second // for reading a request
	writeTimeout  = 20 * time.Second // for writing an answer
	idleTimeout   = time.Minute      // of a connection
	scrapeTimeout = 10 * time.Second // for gathering the metrics
	maxScrapes    = 4                // scrapes at a time
)

// Node is the monitored node.
type Node struct {
	Healthy func(ctx context.Context) error // fails if only a restart can help
	Status  func(ctx context.Context) (report.Status, error)
	Devices func() fuse.ServerStats
}

// Server answers monitoring systems. It is safe for concurrent use.
type Server struct {
	http   http.Server
	log    *slog.Logger
	ended  chan struct{}          // closed when the server has ended
	reason atomic.Pointer[string] // why the node is not ready; nil: it is ready
	node   atomic.Pointer[Node]   // nil before Show
}

// Open listens at address, which is HOST:PORT or unix:/PATH. If that fails, or if the address is
// empty, Open still returns a usable server, which no client can reach.
func Open(ctx context.Context, address string, log *slog.Logger) (*Server, error) {
	s := &Server{log: log, ended: make(chan struct{})}
	s.NotReady("the node starts")
	if address == "" {
		close(s.ended)
		return s, nil
	}
	listener, err := socket.ListenAddress(ctx, address)
	if err != nil {
		close(s.ended)
		return s, err
	}
	s.http = http.Server{
		Handler: s.handler(), ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	go func() {
		defer close(s.ended)
		if err := s.http.Serve(netutil.LimitListener(listener, maxConns)); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics, health and readiness are no longer available", "address", address, "err", err)
		}
	}()
	log.Info("metrics, health and readiness are available", "address", listener.Addr())
	return s, nil
}

// Close ends the listener. It does not wait for requests in flight.
func (s *Server) Close() {
	s.http.Close()
	<-s.ended
}

// NotReady sets why the node is not ready.
func (s *Server) NotReady(reason string) { s.reason.Store(&reason) }

// Ready marks the node as ready.
func (s *Server) Ready() { s.reason.Store(nil) }

// Show makes the node's metrics and health visible, once all its parts exist. Until then a node
// counts as healthy.
func (s *Server) Show(n Node) { s.node.Store(&n) }

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.metricsHandler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { reply(w, s.healthy(r.Context())) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if reason := s.reason.Load(); reason != nil {
			reply(w, errors.New(*reason))
			return
		}
		reply(w, s.healthy(r.Context()))
	})
	return mux
}

func (s *Server) healthy(ctx context.Context) error {
	n := s.node.Load()
	if n == nil {
		return nil
	}
	return n.Healthy(ctx)
}

// reply answers with ok, or with the error in a line of text.
func reply(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintln(w, err) // an error means that the client has gone away
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}
