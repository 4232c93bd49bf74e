package hub

import (
	"net/http"
	"net/url"
)

// authorizing sends a token to a hub with what changes something.
type authorizing struct {
	next  http.RoundTripper
	hub   *url.URL
	token string
}

// RoundTrip sends a request.
func (a *authorizing) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead && req.URL.Host == a.hub.Host && req.URL.Scheme == a.hub.Scheme {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	return a.next.RoundTrip(req)
}

// CloseIdleConnections closes the connections that no request uses.
func (a *authorizing) CloseIdleConnections() {
	if c, ok := a.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
