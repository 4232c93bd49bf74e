// Package access decides which HTTP requests a hub answers. No other package decides this, neither
// for the hub's API nor for its registry.
//
// Everybody who reaches the hub may read, and may report traces and held trees, as nodes do. Both
// kinds of reports are bounded. Changes, and the lists of holders and events, need the
// administrators' token, if there is one. Package wire says which requests these are
// (wire.IsForAdministrators), because clients send the token only with them. Pages of other web
// sites never make changes.
package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"lighter/wire"
)

// Policy decides about requests. It is safe for concurrent use.
type Policy struct {
	token    [sha256.Size]byte // the SHA-256 of the administrators' token
	hasToken bool
	names    []string // host names under which administrators reach the hub
	origins  *http.CrossOriginProtection
}

// New returns a policy. tokenFile is the path of the file with the administrators' token, or "" if
// there is no token. Then a request without TLS may change something only if its host is an IP
// address, localhost, or one of names.
func New(tokenFile string, names []string) (*Policy, error) {
	p := &Policy{names: names, origins: http.NewCrossOriginProtection()}
	if tokenFile == "" {
		return p, nil
	}
	token, err := wire.ReadToken(tokenFile)
	if err != nil {
		return nil, err
	}
	p.hasToken, p.token = true, sha256.Sum256([]byte(token))
	return p, nil
}

var (
	errReadOnly = errors.New("this address of the hub accepts no changes and lists neither holders nor events: " +
		"give the address of its admin_listen with --hub")
	errNoToken = errors.New("to change what the hub has, or to list its holders or events, a client needs the " +
		"token of the hub's admin_token_file: give it with --token-file, or as a registry's password")
	errWrongToken = errors.New("the token is not that of the hub's admin_token_file: " +
		"give that one with --token-file, or as a registry's password")
)

// ReadOnly refuses requests that only administrators may make, and passes all others.
func (p *Policy) ReadOnly(next http.Handler) http.Handler {
	return p.SameSite(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if wire.IsForAdministrators(req.Method, req.URL.Path) {
			refuse(w, req, http.StatusForbidden, errReadOnly)
			return
		}
		next.ServeHTTP(w, req)
	}))
}

// Public passes requests of administrators, and requests that everybody may make.
func (p *Policy) Public(next http.Handler) http.Handler {
	return p.SameSite(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case p.hasToken && req.URL.Path == "/v2/":
			challenge(w) // some registry clients look for a challenge only at this path
		case !wire.IsForAdministrators(req.Method, req.URL.Path):
		case p.hasToken && !p.isAuthorized(req):
			challenge(w)
			refuse(w, req, http.StatusUnauthorized, unauthorized(req))
			return
		case !p.hasToken && req.TLS == nil && !p.knows(req.Host):
			// DNS rebinding: a web page can make its own name point to this hub. It has no
			// certificate for that name and no token, so only a hub without both is at risk.
			refuse(w, req, http.StatusForbidden, fmt.Errorf("the hub is not known as %s: to change what it has, "+
				"or to list its holders, use its address or localhost, or add the name to its configuration (names)",
				req.Host))
			return
		}
		next.ServeHTTP(w, req)
	}))
}

// Admin is like Public, for an address that only administrators use. There /v2/ itself needs the
// token, because some registry clients send a password only if /v2/ asks for it. At a public
// address this would break anonymous pulls.
func (p *Policy) Admin(next http.Handler) http.Handler {
	next = p.Public(next)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if p.hasToken && req.URL.Path == "/v2/" && !p.isAuthorized(req) {
			challenge(w)
			refuse(w, req, http.StatusUnauthorized, unauthorized(req))
			return
		}
		next.ServeHTTP(w, req)
	})
}

// SameSite refuses changes that a browser sends for a page of another site.
func (p *Policy) SameSite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := p.origins.Check(req); err != nil {
			refuse(w, req, http.StatusForbidden, err)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// IsAdministrator reports whether a request carries the administrators' token.
func (p *Policy) IsAdministrator(req *http.Request) bool { return p.hasToken && p.isAuthorized(req) }

// isAuthorized reports whether a request carries the token, as a bearer token or as a password. It
// takes the same time for every wrong token.
func (p *Policy) isAuthorized(req *http.Request) bool {
	_, token, ok := req.BasicAuth()
	if scheme, bearer, found := strings.Cut(req.Header.Get("Authorization"), " "); found &&
		strings.EqualFold(scheme, "Bearer") {
		token, ok = bearer, true
	}
	sum := sha256.Sum256([]byte(token))
	return ok && subtle.ConstantTimeCompare(sum[:], p.token[:]) == 1
}

// unauthorized returns why a request is not authorized.
func unauthorized(req *http.Request) error {
	if req.Header.Get("Authorization") != "" {
		return errWrongToken
	}
	return errNoToken
}

// knows reports whether a Host header, with or without a port, is an address, localhost, or a
// configured name of the hub.
func (p *Policy) knows(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || host == "localhost" ||
		slices.ContainsFunc(p.names, func(name string) bool { return strings.EqualFold(name, host) })
}

// challenge tells a client to send the token.
func challenge(w http.ResponseWriter) { w.Header().Set("WWW-Authenticate", `Basic realm="lighter"`) }

// refuse sends an error in the form of the request's API.
func refuse(w http.ResponseWriter, req *http.Request, status int, reason error) {
	body := any(map[string]string{"error": reason.Error()})
	if strings.HasPrefix(req.URL.Path, "/v2/") {
		code := "DENIED"
		if status == http.StatusUnauthorized {
			code = "UNAUTHORIZED"
		}
		body = map[string]any{"errors": []map[string]string{{"code": code, "message": reason.Error()}}}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // an error means that the client has gone
}
