package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"lighter/format/index"
	"lighter/node/chain"
	"lighter/node/mount"
	"lighter/store"
	"lighter/store/disk"
)

// ControlSocket returns where the daemon with that root answers.
func ControlSocket(root string) string { return filepath.Join(root, "control.sock") }

// Status is what a node says of itself.
type Status struct {
	Root    string           `json:"root"`
	Address string           `json:"address"`
	Hub     string           `json:"hub"`
	HubKeys []string         `json:"hubKeys"`
	Started time.Time        `json:"started"`
	Cache   disk.Stats       `json:"cache"`
	Fetched store.UnitsStats `json:"fetched"`
	Mounts  []MountStatus    `json:"mounts"`
	Images  []chain.Event    `json:"images"` // for each chain that was asked for: lazy, or why not
	Binds   []bind           `json:"binds"`
}

// MountStatus is one mounted tree.
type MountStatus struct {
	mount.Mounted
	Chains []string `json:"chains"`
	Files  int64    `json:"files"`
	Bytes  int64    `json:"bytes"` // of its files
}

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
	path := ControlSocket(n.config.Root)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replace the control socket: %w", err)
	}
	listener, err := net.Listen("unix", path) // the root directory is 0700: nobody else gets here before chmod
	if err != nil {
		return fmt.Errorf("open the control socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		listener.Close()
		return fmt.Errorf("protect the control socket: %w", err)
	}
	server := &http.Server{Handler: n.control(), ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		patience, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		stopped <- server.Shutdown(patience)
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

func (n *Node) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) { reply(w, n.Status(), nil) })
	mux.HandleFunc("POST /cache/prune", func(w http.ResponseWriter, r *http.Request) {
		n.cache.Prune()
		reply(w, n.cache.Stats(), nil)
	})
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, r *http.Request) {
		reply(w, struct{}{}, nil)
		n.stop()
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
		if errors.Is(err, os.ErrNotExist) {
			status = http.StatusNotFound
		}
		w.WriteHeader(status)
		value = map[string]string{"error": err.Error()}
	}
	_ = json.NewEncoder(w).Encode(value) // the client is gone: nobody to tell
}

// Status returns what the node says of itself.
func (n *Node) Status() Status {
	s := Status{Root: n.config.Root, Address: n.config.Address, Hub: n.hub.URL(), HubKeys: n.keys.List(), Started: n.started,
		Cache: n.cache.Stats(), Fetched: n.units.Stats(), Images: n.chains.Events(), Binds: n.listBinds(), Mounts: []MountStatus{}}
	statements := n.chains.Statements()
	for _, m := range n.trees.Mounted() {
		s.Mounts = append(s.Mounts, MountStatus{Mounted: m, Chains: chainsOf(statements, m), Files: m.Header.Files, Bytes: m.Header.Bytes})
	}
	slices.SortFunc(s.Mounts, func(a, b MountStatus) int { return slices.Compare(a.Tree[:], b.Tree[:]) })
	return s
}

func chainsOf(statements []index.Statement, m mount.Mounted) []string {
	var chains []string
	for _, s := range statements {
		if s.Tree == m.Tree {
			chains = append(chains, s.Chain)
		}
	}
	return chains
}
