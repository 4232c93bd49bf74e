package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"

	wire "lighter/store/hub"
)

// listenAdmin listens where alone what is kept is changed; nil: that is done where
// all else is.
func (c *Config) listenAdmin() (net.Listener, error) {
	path, socket := strings.CutPrefix(c.AdminListen, unixPrefix)
	switch {
	case c.AdminListen == "":
		return nil, nil
	case !socket:
		listener, err := net.Listen("tcp", c.AdminListen)
		if err != nil {
			return nil, fmt.Errorf("listen for those who change something: %w", err)
		}
		return listener, nil
	}
	// That of a hub that was killed: this one has the lock of the directory.
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		if conn, err := net.Dial("unix", path); err == nil {
			_ = conn.Close() // it was of no use
			return nil, fmt.Errorf("listen for those who change something: somebody answers at %s", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen for those who change something: %w", err)
		}
	}
	mask := syscall.Umask(0o177) // nobody else gets in before a chmod
	listener, err := net.Listen("unix", path)
	syscall.Umask(mask)
	if err != nil {
		return nil, fmt.Errorf("listen for those who change something: %w", err)
	}
	return listener, nil
}

// errElsewhere is what those are told who ask for a change in the wrong place.
var errElsewhere = errors.New("images and traces are added and removed at another address of this hub (admin_listen)")

// unchanging lets those requests through that read, and the traces of nodes.
func unchanging(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet || req.Method == http.MethodHead || wire.IsTrace(req.Method, req.URL.Path) {
			next.ServeHTTP(w, req)
			return
		}
		answer := any(map[string]string{"error": errElsewhere.Error()})
		if strings.HasPrefix(req.URL.Path, "/v2/") {
			answer = map[string]any{"errors": []map[string]string{{"code": "DENIED", "message": errElsewhere.Error()}}}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(answer) // the client is gone: nobody to tell
	})
}
