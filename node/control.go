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
	"path/filepath"
	"time"
)

// ControlSocket returns where the daemon with that root answers.
func ControlSocket(root string) string { return filepath.Join(root, "control.sock") }

// request bodies of the control socket
type bindRequest struct {
	Name     string `json:"name"`
	Platform string `json:"platform"`
	Dir      string `json:"dir"`
}

// maxRequest bounds the body of a request to the control socket.
const maxRequest = 64 << 10

// serveControl answers on the control socket until ctx is done.
func (n *Node) serveControl(ctx context.Context) error {
	server := &http.Server{Handler: n.control(), ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
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
	mux.HandleFunc("POST /cache/prune", func(w http.ResponseWriter, r *http.Request) {
		n.cache.Prune()
		reply(w, n.cache.Stats(), nil)
	})
	// Where memory, goroutines and time go, as `go tool pprof` reads it.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
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
