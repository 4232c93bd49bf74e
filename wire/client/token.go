package client

import (
	"net/http"
	"net/url"
)

// authorizing adds a hub's token to requests that change something on that hub.
type authorizing struct {
	next  http.RoundTripper
	hub   *url.URL
	token string
}

// RoundTrip implements http.RoundTripper.
func (a *authorizing) RoundTrip(req *http.Request) (*http.Response, error) {
	reads := req.Method == http.MethodGet || req.Method == http.MethodHead
	if !reads && req.URL.Host == a.hub.Host && req.URL.Scheme == a.hub.Scheme {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	return a.next.RoundTrip(req)
}
