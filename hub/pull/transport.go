package pull

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

// publicTransport connects to registries on behalf of users. It connects only to public addresses
// and to hosts that the hub's configuration allows, and drops the bodies of error responses. So a
// user cannot explore the hub's own network.
type publicTransport struct {
	allowed   []string // HOST or HOST:PORT
	plainHTTP bool     // plain HTTP is allowed for other hosts than this machine, too
	next      http.RoundTripper
}

// newPublicTransport returns the transport for one source.
func newPublicTransport(allowed []string, plainHTTP bool) *publicTransport {
	t := &publicTransport{allowed: allowed, plainHTTP: plainHTTP}
	t.next = &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           t.dial,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: headerTimeout,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConnsPerHost:   blobsAtOnce,
		DisableCompression:    true, // digests are of the bytes as they are sent
		ReadBufferSize:        256 << 10,
		ForceAttemptHTTP2:     true,
	}
	return t
}

// RoundTrip sends a request: to the source, to its token server, or where a redirect points.
func (t *publicTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme == "http" && !t.plainHTTP && !wire.IsLoopback(req.URL.Hostname()) {
		return nil, fmt.Errorf("%s is not on this machine: plain HTTP has to be allowed for it", req.URL.Host)
	}
	proxy, err := http.ProxyFromEnvironment(req)
	if err != nil {
		return nil, err
	}
	if proxy != nil {
		// The proxy resolves names. Its operator decides which addresses it connects to.
		address, err := netip.ParseAddr(req.URL.Hostname())
		if err == nil && !isPublic(address) && !t.allows(hostPort(req)) {
			return nil, &privateError{hostPort(req), address}
		}
		req = req.WithContext(context.WithValue(req.Context(), viaProxy{}, true))
	}
	res, err := t.next.RoundTrip(req)
	if err == nil && res.StatusCode >= 400 {
		_ = res.Body.Close() // not read
		res.Body, res.ContentLength = http.NoBody, 0
	}
	return res, err
}

// viaProxy is the context key of requests that go to the proxy that the hub's environment names.
type viaProxy struct{}

// dial connects to a host. It checks the address after the name was resolved: a separate lookup
// could return another one.
func (t *publicTransport) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}
	if ctx.Value(viaProxy{}) == nil && !t.allows(address) {
		dialer.Control = func(_, resolved string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(resolved)
			if err == nil && !isPublic(to.Addr()) {
				err = &privateError{address, to.Addr()}
			}
			return err
		}
	}
	return dialer.DialContext(ctx, network, address)
}

// allows reports whether the hub's configuration allows a host, given as HOST:PORT.
func (t *publicTransport) allows(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && slices.ContainsFunc(t.allowed, func(s string) bool {
		return strings.EqualFold(s, address) || strings.EqualFold(strings.Trim(s, "[]"), host)
	})
}

// hostPort returns the destination of a request as HOST:PORT.
func hostPort(req *http.Request) string {
	port := req.URL.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[req.URL.Scheme]
	}
	return net.JoinHostPort(req.URL.Hostname(), port)
}

// privateError says that a host has no public address and is not allowed.
type privateError struct {
	host    string // HOST:PORT
	address netip.Addr
}

func (e *privateError) Error() string {
	return fmt.Sprintf("%s is at %s, which is not a public address: to allow images from there, "+
		"name it in the hub's configuration (sources, --source %s)", e.host, e.address, e.host)
}

// reserved are the networks that are not public and that package netip does not classify: of one
// machine, of one operator's network, for translation to IPv4, and for tests.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("100::/64"), netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"),
	netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fec0::/10"),
}

// isPublic reports whether an address is reachable from the whole Internet.
func isPublic(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return a.IsGlobalUnicast() && !a.IsPrivate() &&
		!slices.ContainsFunc(reserved, func(p netip.Prefix) bool { return p.Contains(a) })
}
