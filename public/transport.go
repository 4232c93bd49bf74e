// Package public connects to hosts that users or other machines name, or that are outside of the
// operator's network. It connects only to public addresses, and to hosts that the
// configuration allows. So nobody can explore the operator's network with its help.
//
// An address is checked when the name was resolved, for each connection. If the environment names a
// proxy, that proxy resolves names, and its operator decides which addresses it connects to; then
// only a URL with an address is checked here.
package public

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"lighter/wire"
)

// DialTimeout bounds the time to connect.
const DialTimeout = 10 * time.Second

// Transport sends requests to public addresses and to allowed hosts. RoundTrip drops the bodies of
// error responses. It is safe for concurrent use.
type Transport struct {
	// Allows reports whether a host, HOST:PORT, needs no public address.
	Allows func(host string) bool
	// PlainHTTP reports whether plain HTTP to a host, HOST:PORT, is allowed. Within this machine it
	// always is.
	PlainHTTP func(host string) bool
	// Remedy says how a host, HOST:PORT, is allowed. It is part of the error about that host.
	Remedy func(host string) string
	// Next sends the requests. Bind makes its transports connect as the Transport decides.
	Next http.RoundTripper
}

// Bind makes a transport connect only as t decides, and returns it.
func (t *Transport) Bind(next *http.Transport) *http.Transport {
	next.Proxy = http.ProxyFromEnvironment
	next.DialContext = t.dial
	next.TLSHandshakeTimeout = DialTimeout
	return next
}

// CloseIdleConnections closes the idle connections of Next.
func (t *Transport) CloseIdleConnections() {
	if next, ok := t.Next.(interface{ CloseIdleConnections() }); ok {
		next.CloseIdleConnections()
	}
}

// Hosts returns a function that reports whether HOST:PORT is one of all: HOST or HOST:PORT.
func Hosts(all ...string) func(host string) bool {
	return func(address string) bool {
		host, _, err := net.SplitHostPort(address)
		return err == nil && slices.ContainsFunc(all, func(s string) bool {
			return strings.EqualFold(s, address) || strings.EqualFold(strings.Trim(s, "[]"), host)
		})
	}
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.Send(req)
	if err == nil && res.StatusCode >= 400 {
		_ = res.Body.Close() // not read
		res.Body, res.ContentLength = http.NoBody, 0
	}
	return res, err
}

// Send sends a request, and returns the response as it is.
func (t *Transport) Send(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme == "http" && !wire.IsLoopback(req.URL.Hostname()) && !t.PlainHTTP(hostPort(req)) {
		return nil, fmt.Errorf("%s is not on this machine: plain HTTP has to be allowed for it", req.URL.Host)
	}
	proxy, err := http.ProxyFromEnvironment(req)
	if err != nil {
		return nil, err
	}
	if proxy != nil {
		address, err := netip.ParseAddr(req.URL.Hostname())
		if err == nil && !IsPublic(address) && !t.Allows(hostPort(req)) {
			return nil, t.refuse(hostPort(req), address)
		}
		req = req.WithContext(context.WithValue(req.Context(), viaProxy{}, true))
	}
	return t.Next.RoundTrip(req)
}

// viaProxy is the context key of requests that go to the proxy that the environment names.
type viaProxy struct{}

// dial connects to a host. It checks the address after the name was resolved: a separate lookup
// could return another one.
func (t *Transport) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: DialTimeout, KeepAlive: 15 * time.Second}
	if ctx.Value(viaProxy{}) == nil && !t.Allows(address) {
		dialer.Control = func(_, resolved string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(resolved)
			if err == nil && !IsPublic(to.Addr()) {
				err = t.refuse(address, to.Addr())
			}
			return err
		}
	}
	return dialer.DialContext(ctx, network, address)
}

// hostPort returns the destination of a request as HOST:PORT.
func hostPort(req *http.Request) string {
	port := req.URL.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[req.URL.Scheme]
	}
	return net.JoinHostPort(req.URL.Hostname(), port)
}

// refuse returns the error about a host that has no public address and is not allowed.
func (t *Transport) refuse(host string, address netip.Addr) error {
	return fmt.Errorf("%s is at %s, which is not a public address: %s", host, address, t.Remedy(host))
}
