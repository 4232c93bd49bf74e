package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"lighter/buildinfo"
	"lighter/node/binds"
	"lighter/node/completion"
	"lighter/node/imagecache"
	"lighter/node/ondemand"
	"lighter/node/preheat"
	"lighter/node/report"
)

const (
	maxRequest      = 64 << 10         // bytes of a request's body that are read
	headerTimeout   = 10 * time.Second // for reading a request's header
	idleTimeout     = time.Minute      // how long a connection may be without a request
	shutdownTimeout = 5 * time.Second  // for requests in flight when the node stops
)

// Reporter reports the state of the node.
type Reporter interface {
	Status(ctx context.Context) (report.Status, error)
	Images(ctx context.Context, word string) ([]report.ImageDetail, error)
}

// Binder mounts images without containerd.
type Binder interface {
	Bind(ctx context.Context, name, platform, dir string) (binds.Bind, error)
	Unbind(dir string) error
}

// Starter mounts images for containers that start without containerd.
type Starter interface {
	Start(ctx context.Context, name, platform, dir string) (binds.Started, error)
}

// Preheater fetches chunks of an image before a container needs them.
type Preheater interface {
	Preheat(ctx context.Context, image, platform string, all bool, report func(preheat.Progress)) error
}

// Recorder records the next start of an image.
type Recorder interface {
	Record(ctx context.Context, image string, text bool, report func(ondemand.Progress)) error
}

// Server answers on the control socket.
type Server struct {
	Reporter  Reporter
	Cache     *imagecache.Cache
	Preheater Preheater
	Binds     Binder
	Starter   Starter
	Recorder  Recorder
	Stop      func() // ends the daemon
}

// Serve answers on listener until ctx is done. Then it waits for requests in flight, for
// shutdownTimeout at most.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: withVersion(s.handler()), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		stopped <- server.Shutdown(ctx)
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the control socket: %w", err)
	}
	return <-stopped
}

// versionHeader is the header with the version of the program that answers.
const versionHeader = "Lighter-Version"

// withVersion adds this program's version to each answer of a handler.
func withVersion(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(versionHeader, buildinfo.Release())
		next.ServeHTTP(w, r)
	})
}

// request is the body of any request.
type request struct {
	Name     string `json:"name,omitempty"`
	Platform string `json:"platform,omitempty"`
	Dir      string `json:"dir,omitempty"`
	Text     bool   `json:"text,omitempty"` // return the trace, instead of sending it to a hub
	All      bool   `json:"all,omitempty"`  // fetch all chunks, not only those of startup packs
}

// none is an answer without content.
type none struct{}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", answer(func(ctx context.Context, _ request) (report.Status, error) {
		return s.Reporter.Status(ctx)
	}))
	mux.HandleFunc("POST /status/images", answer(func(ctx context.Context, r request) ([]report.ImageDetail, error) {
		return s.Reporter.Images(ctx, r.Name)
	}))
	mux.HandleFunc("POST /mount", answer(func(ctx context.Context, r request) (binds.Bind, error) {
		return s.Binds.Bind(ctx, r.Name, r.Platform, r.Dir)
	}))
	mux.HandleFunc("POST /start", answer(func(ctx context.Context, r request) (binds.Started, error) {
		return s.Starter.Start(ctx, r.Name, r.Platform, r.Dir)
	}))
	mux.HandleFunc("POST /unmount", answer(func(_ context.Context, r request) (none, error) {
		return none{}, s.Binds.Unbind(r.Dir)
	}))
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, none{}, nil)
		s.Stop()
	})
	mux.HandleFunc("POST /trace/record", stream(func(ctx context.Context, r request,
		report func(ondemand.Progress)) error {
		return s.Recorder.Record(ctx, r.Name, r.Text, report)
	}))
	// Memory, goroutines and CPU time, for `go tool pprof`.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	s.handleCache(mux)
	return mux
}

func (s *Server) handleCache(mux *http.ServeMux) {
	status := func(err error) (imagecache.Status, error) { return s.Cache.Status(), err }
	mux.HandleFunc("GET /cache", answer(func(context.Context, request) (imagecache.Status, error) {
		return status(nil)
	}))
	mux.HandleFunc("POST /cache/pin", answer(func(ctx context.Context, r request) (imagecache.Status, error) {
		return status(s.Cache.Pin(ctx, r.Name))
	}))
	mux.HandleFunc("POST /cache/unpin", answer(func(ctx context.Context, r request) (imagecache.Status, error) {
		return status(s.Cache.Unpin(ctx, r.Name))
	}))
	mux.HandleFunc("POST /cache/evict", answer(func(ctx context.Context, r request) (imagecache.Freed, error) {
		return s.Cache.Evict(ctx, r.Name)
	}))
	mux.HandleFunc("POST /cache/prune", answer(func(context.Context, request) (imagecache.Freed, error) {
		return s.Cache.Prune(), nil
	}))
	mux.HandleFunc("POST /cache/scrub", answer(func(ctx context.Context, _ request) (imagecache.Scrubbed, error) {
		return s.Cache.Scrub(ctx)
	}))
	mux.HandleFunc("POST /cache/fetch", stream(func(ctx context.Context, r request,
		report func(completion.Progress)) error {
		return s.Cache.Fetch(ctx, r.Name, report)
	}))
	mux.HandleFunc("POST /cache/preheat", stream(func(ctx context.Context, r request,
		report func(preheat.Progress)) error {
		return s.Preheater.Preheat(ctx, r.Name, r.Platform, r.All, report)
	}))
}

// answer returns a handler for requests that have one answer.
func answer[T any](do func(ctx context.Context, r request) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, in *http.Request) {
		r, err := decode(in)
		if err != nil {
			reply(w, nil, err)
			return
		}
		value, err := do(in.Context(), r)
		reply(w, value, err)
	}
}

// update is one line of a stream: a report of progress, or the end.
type update[T any] struct {
	Progress T      `json:"progress"`
	Done     bool   `json:"done,omitempty"`
	Error    string `json:"error,omitempty"` // why the request failed
}

// stream returns a handler for requests whose answer is a stream: a line for each report of
// progress, and a last line for the end.
func stream[T any](do func(ctx context.Context, r request, report func(T)) error) http.HandlerFunc {
	return func(w http.ResponseWriter, in *http.Request) {
		r, err := decode(in)
		if err != nil {
			reply(w, nil, err)
			return
		}
		write := func(u update[T]) {
			_ = json.NewEncoder(w).Encode(u) // an error means that the client has gone away: ctx ends, too
			_ = http.NewResponseController(w).Flush()
		}
		end := update[T]{Done: true}
		if err := do(in.Context(), r, func(at T) { write(update[T]{Progress: at}) }); err != nil {
			end.Error = err.Error()
		}
		write(end)
	}
}

// decode reads a request's body. Without a body, it returns an empty request.
func decode(in *http.Request) (r request, err error) {
	err = json.NewDecoder(io.LimitReader(in.Body, maxRequest)).Decode(&r)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return r, err
}

// reply sends a value, or an error as {"error": …}.
func reply(w http.ResponseWriter, value any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		status := http.StatusBadGateway
		if errors.Is(err, binds.ErrNotBound) || errors.Is(err, binds.ErrNoImage) || errors.Is(err, report.ErrNoImage) {
			status = http.StatusNotFound
		}
		w.WriteHeader(status)
		value = map[string]string{"error": err.Error()}
	}
	_ = json.NewEncoder(w).Encode(value) // an error means that the client has gone away
}
