package client

import (
	"net/http"
	"net/url"
	"strings"

	"lighter/wire"
)

// authorizing adds a hub's token to requests to that hub that need it.
type authorizing struct {
	next  http.RoundTripper
	hub   *url.URL
	token string
}

// RoundTrip implements http.RoundTripper.
func (a *authorizing) RoundTrip(req *http.Request) (*http.Response, error) {
	needed := wire.IsForAdministrators(req.Method, strings.TrimPrefix(req.URL.Path, a.hub.Path))
	if needed && req.URL.Host == a.hub.Host && req.URL.Scheme == a.hub.Scheme {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	return a.next.RoundTrip(req)
}
