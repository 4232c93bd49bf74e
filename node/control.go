package node

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
)

// request bodies of the control socket
type bindRequest struct {
	Name     string `json:"name"`
	Platform string `json:"platform"`
	Dir      string `json:"dir"`
}

type cacheRequest struct {
	Name string `json:"name"`
}

type recordRequest struct {
	Name string `json:"name"`
	Text bool   `json:"text"` // give the trace as text, to nobody else
}

// maxRequest bounds the body of a request to the control socket.
const maxRequest = 64 << 10

// serveControl answers on the control socket until ctx is done.
func (n *Node) serveControl(ctx context.Context) error {
	server := &http.Server{Handler: n.control(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx }}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		patience, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		stopped <- server.Shutdown(patience)
	}()
	if err := server.Serve(n.controls); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the control socket: %w", err)
	}
	return <-stopped
}

func (n *Node) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		status, err := n.Status(r.Context())
		reply(w, status, err)
	})
	mux.HandleFunc("GET /status/images", func(w http.ResponseWriter, r *http.Request) {
		images, err := n.Images(r.Context(), r.URL.Query().Get("name"))
		reply(w, images, err)
	})
	// Where memory, goroutines and time go, as `go tool pprof` reads it.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	n.controlCache(mux)
	mux.HandleFunc("POST /trace/record", n.controlRecord)
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, r *http.Request) {
		reply(w, struct{}{}, nil)
		n.stop(nil)
	})
	mux.HandleFunc("POST /mount", func(w http.ResponseWriter, r *http.Request) {
		var req bindRequest
		if err := json.NewDecoder(io.LimitReader(r.Body, maxRequest)).Decode(&req); err != nil {
			reply(w, nil, err)
			return
		}
		b, err := n.bindImage(r.Context(), req.Name, req.Platform, req.Dir)
		reply(w, b, err)
	})
	mux.HandleFunc("POST /unmount", func(w http.ResponseWriter, r *http.Request) {
		var req bindRequest
		if err := json.NewDecoder(io.LimitReader(r.Body, maxRequest)).Decode(&req); err != nil {
			reply(w, nil, err)
			return
		}
		reply(w, struct{}{}, n.unbind(req.Dir))
	})
	return mux
}

// controlCache answers about the cache.
func (n *Node) controlCache(mux *http.ServeMux) {
	mux.HandleFunc("GET /cache", func(w http.ResponseWriter, r *http.Request) {
		reply(w, n.cacheStatus(), nil)
	})
	mux.HandleFunc("POST /cache/prune", func(w http.ResponseWriter, r *http.Request) {
		freed := n.cache.Prune()
		reply(w, CacheFreed{freed, n.cacheStatus()}, nil)
	})
	mux.HandleFunc("POST /cache/scrub", func(w http.ResponseWriter, r *http.Request) {
		found, err := n.cache.Scrub(r.Context(), 0)
		files, failed := n.trees.Scrub(r.Context(), 0)
		reply(w, CacheScrubbed{found, files, n.cacheStatus()}, errors.Join(err, failed))
	})
	named := func(path string, do func(w http.ResponseWriter, ctx context.Context, name string)) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			var req cacheRequest
			if err := json.NewDecoder(io.LimitReader(r.Body, maxRequest)).Decode(&req); err != nil {
				reply(w, nil, err)
				return
			}
			do(w, r.Context(), req.Name)
		})
	}
	named("/cache/pin", func(w http.ResponseWriter, ctx context.Context, name string) {
		err := n.pin(ctx, name)
		reply(w, n.cacheStatus(), err)
	})
	named("/cache/unpin", func(w http.ResponseWriter, ctx context.Context, name string) {
		err := n.unpin(ctx, name)
		reply(w, n.cacheStatus(), err)
	})
	named("/cache/evict", func(w http.ResponseWriter, ctx context.Context, name string) {
		freed, err := n.evict(ctx, name)
		reply(w, CacheFreed{freed, n.cacheStatus()}, err)
	})
	named("/cache/fetch", func(w http.ResponseWriter, ctx context.Context, name string) { // a line for each report
		last := CacheFetched{}
		say := func() {
			_ = json.NewEncoder(w).Encode(last) // the client is gone: ctx ends too
			_ = http.NewResponseController(w).Flush()
		}
		err := n.fetch(ctx, name, func(at CacheFetched) { last = at; say() })
		if err != nil {
			last.Error = err.Error()
			say()
		}
	})
}

// controlRecord answers with a line for each report.
func (n *Node) controlRecord(w http.ResponseWriter, r *http.Request) {
	var req recordRequest
	if err := json.NewDecoder(io.LimitReader(r.Body, maxRequest)).Decode(&req); err != nil {
		reply(w, nil, err)
		return
	}
	last := TraceRecorded{}
	say := func() {
		_ = json.NewEncoder(w).Encode(last) // the client is gone: ctx ends too
		_ = http.NewResponseController(w).Flush()
	}
	err := n.recordNext(r.Context(), req.Name, req.Text, func(at TraceRecorded) { last = at; say() })
	if err != nil {
		last.Error = err.Error()
		say()
	}
}

// reply sends a value, or an error as {"error": …}.
func reply(w http.ResponseWriter, value any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		status := http.StatusBadGateway
		if errors.Is(err, errNotBound) || errors.Is(err, errNoImage) {
			status = http.StatusNotFound
		}
		w.WriteHeader(status)
		value = map[string]string{"error": err.Error()}
	}
	_ = json.NewEncoder(w).Encode(value) // the client is gone: nobody to tell
}
