package ingest

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

// outward connects to registries for whoever adds images. So that they cannot look
// around in the hub's own network, it connects to public addresses alone, and to hosts
// that the hub's configuration names, and hands on nothing of an answer that is an error.
type outward struct {
	named     []string // HOST or HOST:PORT
	plainHTTP bool     // unencrypted HTTP was allowed for other hosts than this one
	next      http.RoundTripper
}

// newOutward returns the transport for one source.
func newOutward(named []string, plainHTTP bool) *outward {
	o := &outward{named: named, plainHTTP: plainHTTP}
	o.next = &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           o.dial,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: headerTimeout,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConnsPerHost:   blobsAtOnce,
		DisableCompression:    true, // the bytes have a digest: they come as they are
		ReadBufferSize:        256 << 10,
		ForceAttemptHTTP2:     true,
	}
	return o
}

// RoundTrip sends a request: of a source, of its token server, or after a redirect.
func (o *outward) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme == "http" && !o.plainHTTP && !wire.IsLoopback(req.URL.Hostname()) {
		return nil, fmt.Errorf("%s is not on this machine: plain HTTP has to be allowed for it", req.URL.Host)
	}
	proxy, err := http.ProxyFromEnvironment(req)
	if err != nil {
		return nil, err
	}
	if proxy != nil {
		// The proxy resolves names, and it is for its operator to say where it connects to.
		if address, err := netip.ParseAddr(req.URL.Hostname()); err == nil && !isPublic(address) && !o.names(hostPort(req)) {
			return nil, &privateError{hostPort(req), address}
		}
		req = req.WithContext(context.WithValue(req.Context(), viaProxy{}, true))
	}
	res, err := o.next.RoundTrip(req)
	if err == nil && res.StatusCode >= 400 {
		_ = res.Body.Close() // nobody reads it
		res.Body, res.ContentLength = http.NoBody, 0
	}
	return res, err
}

// viaProxy marks the context of a request whose connection goes to the proxy of the
// hub's environment.
type viaProxy struct{}

// dial connects to a host. The address is checked when the connection is made, after
// its name was resolved: another look-up could give another one.
func (o *outward) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}
	if ctx.Value(viaProxy{}) == nil && !o.names(address) {
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

// names reports whether the hub's configuration names a host, given as HOST:PORT.
func (o *outward) names(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && slices.ContainsFunc(o.named, func(s string) bool {
		return strings.EqualFold(s, address) || strings.EqualFold(strings.Trim(s, "[]"), host)
	})
}

// hostPort returns where a request goes, as HOST:PORT.
func hostPort(req *http.Request) string {
	port := req.URL.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[req.URL.Scheme]
	}
	return net.JoinHostPort(req.URL.Hostname(), port)
}

// privateError says that a host is not one that everybody may have the hub connect to.
type privateError struct {
	host    string // HOST:PORT
	address netip.Addr
}

func (e *privateError) Error() string {
	return fmt.Sprintf("%s is at %s, which is not a public address: if images may be added from there, name it in the hub's configuration (sources, --source %s)", e.host, e.address, e.host)
}

// reserved are networks that are not for everybody and that package netip does not tell
// apart: of one machine, of one operator's network, for translation to IPv4, for tests.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("100::/64"), netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"),
	netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fec0::/10"),
}

// isPublic reports whether an address is one that the whole Internet reaches.
func isPublic(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return a.IsGlobalUnicast() && !a.IsPrivate() && !slices.ContainsFunc(reserved, func(p netip.Prefix) bool { return p.Contains(a) })
}
