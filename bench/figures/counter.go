package figures

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
)

// counter stands in front of a registry and counts the GET requests for each path.
type counter struct {
	listener net.Listener
	server   http.Server

	mu   sync.Mutex // guards gets
	gets map[string]int
}

// newCounter starts a counter in front of the registry HOST:PORT. The caller closes it.
func newCounter(registry string) (*counter, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &counter{listener: listener, gets: map[string]int{}}
	next := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: registry})
	c.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			c.mu.Lock()
			c.gets[req.URL.Path]++
			c.mu.Unlock()
		}
		next.ServeHTTP(w, req)
	})
	go func() { _ = c.server.Serve(listener) }() // until close
	return c, nil
}

// address is the counter's HOST:PORT.
func (c *counter) address() string { return c.listener.Addr().String() }

// most returns the number of requests for the path with a prefix that was requested most often.
func (c *counter) most(prefix string) (most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for path, n := range c.gets {
		if strings.HasPrefix(path, prefix) {
			most = max(most, n)
		}
	}
	return most
}

func (c *counter) close() { _ = c.server.Close() }
