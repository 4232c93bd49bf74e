package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"

	"lighter/socket"
)

// Bounds of the listener for machines: those who ask are few, and short.
const (
	webConns   = 64
	webHeader  = 16 << 10
	webTimeout = 10 * time.Second
	webIdle    = time.Minute
)

// web tells machines how the node is: /metrics, /healthz and /readyz. It answers
// from before a former daemon's mounts are recovered until after the last is
// closed. What goes wrong with it costs nobody anything but this view.
type web struct {
	server http.Server
	served chan struct{}          // closed when it answers no more
	why    atomic.Pointer[string] // the node is not ready; nil: it is
	node   atomic.Pointer[Node]   // once its parts are there
}

// openWeb listens where the configuration says; nil: nowhere.
func openWeb(ctx context.Context, address string, log *slog.Logger) (*web, error) {
	if address == "" {
		return nil, nil
	}
	listener, err := socket.ListenAddress(ctx, address)
	if err != nil {
		return nil, err
	}
	w := &web{served: make(chan struct{})}
	w.notReady("it starts")
	w.server = http.Server{Handler: w.handler(log), ReadHeaderTimeout: webTimeout, ReadTimeout: webTimeout, WriteTimeout: 2 * webTimeout,
		IdleTimeout: webIdle, MaxHeaderBytes: webHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	go func() {
		defer close(w.served)
		if err := w.server.Serve(netutil.LimitListener(listener, webConns)); !errors.Is(err, http.ErrServerClosed) {
			log.Error("nobody can ask for metrics, health or readiness any more", "address", address, "cause", err)
		}
	}()
	log.Info("metrics, health and readiness can be asked for", "address", listener.Addr())
	return w, nil
}

// close ends the listener.
func (w *web) close() {
	if w == nil {
		return
	}
	w.server.Close() // nobody's answer is worth waiting for
	<-w.served
}

// notReady says why the node is not ready.
func (w *web) notReady(why string) {
	if w != nil {
		w.why.Store(&why)
	}
}

// ready says that the node is ready.
func (w *web) ready() {
	if w != nil {
		w.why.Store(nil)
	}
}

// show makes the node's figures seen, once all its parts are there.
func (w *web) show(n *Node) {
	if w != nil {
		w.node.Store(n)
	}
}

func (w *web) handler(log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metricsHandler(w, log))
	mux.HandleFunc("GET /healthz", func(out http.ResponseWriter, in *http.Request) { answer(out, w.unhealthy(in.Context())) })
	mux.HandleFunc("GET /readyz", func(out http.ResponseWriter, in *http.Request) {
		if why := w.why.Load(); why != nil {
			answer(out, errors.New(*why))
			return
		}
		answer(out, w.unhealthy(in.Context()))
	})
	return mux
}

// unhealthy says why only a restart can help, if the node is that far: one that
// recovers is healthy.
func (w *web) unhealthy(ctx context.Context) error {
	n := w.node.Load()
	if n == nil {
		return nil
	}
	return n.health.Healthy(ctx)
}

// answer says ok, or what is wrong, in a line of text.
func answer(out http.ResponseWriter, wrong error) {
	out.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out.Header().Set("Cache-Control", "no-store")
	if wrong != nil {
		out.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintln(out, wrong) // the client is gone: nobody to tell
		return
	}
	_, _ = fmt.Fprintln(out, "ok")
}
