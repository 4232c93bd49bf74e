package hub

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"lighter/wire"
)

// access decides whether a request may change what the hub has.
type access struct {
	token [sha256.Size]byte // the SHA-256 of the administrators' token
	asks  bool              // there is a token
	names []string          // host names under which administrators reach the hub
	pages *http.CrossOriginProtection
}

// newAccess reads the administrators' token, if there is one.
func newAccess(c *Config) (*access, error) {
	a := &access{names: c.Names, pages: http.NewCrossOriginProtection()}
	if c.AdminTokenFile == "" {
		return a, nil
	}
	token, err := wire.ReadToken(c.AdminTokenFile)
	if err != nil {
		return nil, err
	}
	a.asks, a.token = true, sha256.Sum256([]byte(token))
	return a, nil
}

// changes reports whether a request changes what the hub has. The traces of nodes do
// not: their number is bounded.
func changes(req *http.Request) bool {
	return req.Method != http.MethodGet && req.Method != http.MethodHead && !wire.IsTrace(req.Method, req.URL.Path)
}

var (
	errElsewhere = errors.New("images and traces are added and removed at another address of this hub (admin_listen)")
	errNoToken   = errors.New("to change what the hub has needs the token of its admin_token_file: give it with --token-file, or as a registry's password")
)

// unchanging passes requests that read, and the traces of nodes, and refuses others.
func (a *access) unchanging(next http.Handler) http.Handler {
	return a.sameSite(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if changes(req) {
			refuse(w, req, http.StatusForbidden, errElsewhere)
			return
		}
		next.ServeHTTP(w, req)
	}))
}

// authorized passes requests that read, and those that may change something.
func (a *access) authorized(next http.Handler) http.Handler {
	return a.sameSite(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case a.asks && req.URL.Path == "/v2/":
			challenge(w) // some clients look nowhere else for it
		case !changes(req):
		case a.asks && !a.hasToken(req):
			challenge(w)
			refuse(w, req, http.StatusUnauthorized, errNoToken)
			return
		case !a.asks && req.TLS == nil && !a.knows(req.Host):
			// A page of that name may have the name point here. It has no certificate and
			// no token, so only a hub without both can be reached like this.
			refuse(w, req, http.StatusForbidden, errors.New("the hub is not known as "+req.Host+": to change what it has, use its address or localhost, or add the name to its configuration (names)"))
			return
		}
		next.ServeHTTP(w, req)
	}))
}

// tokenOnly is authorized for clients that send a password only where /v2/ asks for it:
// it does so at an address where there is no anonymous pull to be kept working.
func (a *access) tokenOnly(next http.Handler) http.Handler {
	next = a.authorized(next)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if a.asks && req.URL.Path == "/v2/" && !a.hasToken(req) {
			challenge(w)
			refuse(w, req, http.StatusUnauthorized, errNoToken)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// sameSite refuses what a browser sends for a page of another site, but for reading.
func (a *access) sameSite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := a.pages.Check(req); err != nil {
			refuse(w, req, http.StatusForbidden, err)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// hasToken reports whether a request carries the token, as a bearer's or as a password.
// It takes the same time for every wrong one.
func (a *access) hasToken(req *http.Request) bool {
	_, token, ok := req.BasicAuth()
	if scheme, bearer, found := strings.Cut(req.Header.Get("Authorization"), " "); found && strings.EqualFold(scheme, "Bearer") {
		token, ok = bearer, true
	}
	sum := sha256.Sum256([]byte(token))
	return ok && subtle.ConstantTimeCompare(sum[:], a.token[:]) == 1
}

// knows reports whether host, with or without a port, is an address, this machine, or
// a name of the hub.
func (a *access) knows(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || host == "localhost" || slices.ContainsFunc(a.names, func(name string) bool { return strings.EqualFold(name, host) })
}

// challenge says how a client shows that it may change something.
func challenge(w http.ResponseWriter) { w.Header().Set("WWW-Authenticate", `Basic realm="lighter"`) }

// refuse answers a request that is not allowed, in the form that its path has.
func refuse(w http.ResponseWriter, req *http.Request, status int, why error) {
	answer := any(map[string]string{"error": why.Error()})
	if strings.HasPrefix(req.URL.Path, "/v2/") {
		code := "DENIED"
		if status == http.StatusUnauthorized {
			code = "UNAUTHORIZED"
		}
		answer = map[string]any{"errors": []map[string]string{{"code": code, "message": why.Error()}}}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // the client is gone: nobody to tell
}
