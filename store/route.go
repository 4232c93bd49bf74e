package store

import (
	"maps"
	"sync"

	"lighter/format/chunk"
)

// Router is a Source that asks different servers for different units. The Fetcher estimates the
// path to each of them on its own. So a server that is slow or fails delays no requests to another
// one.
type Router interface {
	// Route names the server that is asked for a unit. Empty: the one that is asked for all chunks
	// whose unit is not known. That server is meant by Connector and Estimator.
	Route(u chunk.Unit) string
}

// maxRoutes bounds the servers that have a path of their own. All further ones share that of the
// server without a name.
const maxRoutes = 64

// route is what is known of the path to one server.
type route struct {
	name    string // of the server
	link    link
	backoff backoff
}

// routes are the paths to all servers. It is safe for concurrent use.
type routes struct {
	route  // to the server without a name
	router Router

	mu     sync.Mutex // guards others
	others map[string]*route
}

// routeTo returns the path to the server that is asked for what a key names.
func (r *routes) routeTo(key flightKey) *route {
	if r.router == nil || key.unit.IsZero() {
		return &r.route
	}
	name := r.router.Route(key.unit)
	if name == "" {
		return &r.route
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	other := r.others[name]
	switch {
	case other != nil:
		return other
	case len(r.others) == maxRoutes:
		return &r.route
	case r.others == nil:
		r.others = map[string]*route{}
	}
	other = &route{name: name}
	r.others[name] = other
	return other
}

// assume sets the source's own estimate of a path that was not measured here yet.
func (f *Fetcher) assume(to *route) {
	if e, ok := f.source.(Estimator); ok && !to.link.isMeasured() {
		to.link.assume(e.Estimate(to.name))
	}
}

// namedRoutes returns the paths to the servers with names.
func (r *routes) namedRoutes() map[string]*route {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.others)
}

// wake makes waiting shares check again whether there is room on their paths.
func (r *routes) wake() {
	r.link.wake()
	for _, other := range r.namedRoutes() {
		other.link.wake()
	}
}
