// Package client speaks to one hub over HTTP. The commands use it to manage images
// and traces, and package origin builds a node's failover on it.
//
// A Client sends each request once: it neither retries nor chooses another hub. It does not verify
// answers: package origin and its callers verify what a node must not simply believe. Errors never
// show a credential of the hub's URL or of a redirect.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"lighter/wire"
)

const (
	dialTimeout   = 3 * time.Second
	keepAlive     = 15 * time.Second // between TCP keep-alive probes
	headerTimeout = 15 * time.Second // from the request to the header of its answer
	idleTimeout   = time.Minute      // after which an idle connection is closed
	// maxConns bounds the connections to one hub, maxIdle those that are kept idle. Package
	// store has lower limits on requests, so no request waits for a connection.
	maxConns = 512
	maxIdle  = 128
	// pingAfter and pingTimeout detect a dead HTTP/2 connection, on which all requests
	// would wait.
	pingAfter   = 3 * time.Second
	pingTimeout = 3 * time.Second
	// maxRedirects is how many redirects one request follows.
	maxRedirects = 3

	readBuffer = 64 << 10 // bytes
	maxHeader  = 64 << 10 // bytes of an answer's header
	maxMessage = 16 << 10 // bytes of an error's body
	maxKeys    = 4 << 10  // bytes of the hub's public keys
	maxAnswer  = 4 << 20  // bytes of a JSON answer to a node
	maxLine    = 16 << 20 // bytes of a line of wire.Progress: the last one lists images and problems
)

// Client speaks to one hub. It is safe for concurrent use.
type Client struct {
	options Options
	base    *url.URL
	url     string // base without credentials
	socket  string // path of a Unix socket; empty: connect to base
	http    *http.Client
}

// Options say how to reach a hub.
type Options struct {
	URL       string      // http://HOST:PORT, https://HOST[:PORT] or unix:/PATH, a Unix socket
	Domain    string      // default: wire.DefaultDomain
	PlainHTTP bool        // allow http to another machine
	CAFile    string      // certificates (PEM) to trust in addition to the system's
	TokenFile string      // file with the token; see wire.ReadToken and wire.IsForAdministrators
	Header    http.Header // added to every request
	// Dial opens the connections; default: Dial.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Log receives errors of reading CAFile again; default: they are dropped.
	Log *slog.Logger
}

// Dial is the default of Options.Dial.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext(ctx, network, address)
}

// New checks the options. It does not connect.
func New(o Options) (*Client, error) {
	address, socket := o.URL, ""
	if path, ok := strings.CutPrefix(o.URL, "unix:"); ok && strings.HasPrefix(path, "/") {
		address, socket = "http://localhost", path
	}
	base, err := url.Parse(address)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("%q is not the URL of a hub: want http://HOST:PORT, https://HOST or unix:/PATH",
			redacted(o.URL))
	}
	if err := o.allows(base); err != nil {
		return nil, err
	}
	if o.Domain == "" {
		o.Domain = wire.DefaultDomain
	}
	if err := wire.CheckDomain(o.Domain); err != nil {
		return nil, err
	}
	if o.Dial == nil {
		o.Dial = Dial
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	c := &Client{options: o, base: base, url: redacted(base.String()), socket: socket}
	if socket != "" {
		c.url = o.URL
	}
	c.http = &http.Client{Transport: c.transport(nil), CheckRedirect: c.follow}
	if o.CAFile != "" {
		trusting, err := trusting(o.Log, o.CAFile, c.transport)
		if err != nil {
			return nil, err
		}
		c.http.Transport = trusting
	}
	if o.TokenFile != "" {
		token, err := wire.ReadToken(o.TokenFile)
		if err != nil {
			return nil, err
		}
		c.http.Transport = &authorizing{next: c.http.Transport, hub: base, token: token}
	}
	return c, nil
}

// transport makes a transport to the hub. Without a TLS configuration it trusts the
// system's certificates.
func (c *Client) transport(secure *tls.Config) *http.Transport {
	t := &http.Transport{
		DialContext:           c.dial,
		TLSClientConfig:       secure,
		ResponseHeaderTimeout: headerTimeout, TLSHandshakeTimeout: headerTimeout,
		MaxConnsPerHost: maxConns, MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: idleTimeout,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true, // units and indexes are compressed already
		ForceAttemptHTTP2:      true,
		ReadBufferSize:         readBuffer,
	}
	if c.socket == "" {
		t.Proxy = http.ProxyFromEnvironment
	}
	return t
}

func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if c.socket != "" {
		network, address = "unix", c.socket
	}
	return c.options.Dial(ctx, network, address)
}

// allows refuses plain HTTP to another machine unless the options allow it.
func (o *Options) allows(u *url.URL) error {
	if u.Scheme == "http" && !o.PlainHTTP && !wire.IsLoopback(u.Hostname()) {
		return fmt.Errorf("%s://%s is not on this machine: use https, or allow plain HTTP with --plain-http",
			u.Scheme, u.Host)
	}
	return nil
}

// follow decides about a redirect. Only a GET may be redirected, because objects are verified when
// they arrive. Requests that change something or carry a credential go to the configured hub alone.
// So does the request for the hub's key, because the key cannot be verified.
func (c *Client) follow(req *http.Request, via []*http.Request) error {
	first := via[0]
	to := req.URL.Scheme + "://" + req.URL.Host
	switch {
	case c.socket != "":
		return fmt.Errorf("redirect to %s refused: every connection goes to %s", to, c.url)
	case first.Method != http.MethodGet || first.URL.Path == c.base.Path+wire.KeyPath(c.Domain()):
		return fmt.Errorf("redirect to %s refused: if that is the hub, configure it as the hub's URL", to)
	case len(via) > maxRedirects:
		return fmt.Errorf("more than %d redirects", maxRedirects)
	case first.URL.Scheme == "https" && req.URL.Scheme != "https":
		return fmt.Errorf("redirect from https to %s refused", to)
	}
	return c.options.allows(req.URL)
}

// IsLoopback reports whether the hub is on this machine.
func (c *Client) IsLoopback() bool { return wire.IsLoopback(c.base.Hostname()) }

// URL returns the hub's URL without credentials: without user information and query.
func (c *Client) URL() string { return c.url }

// Domain returns the domain on the hub, which is part of every path.
func (c *Client) Domain() string { return c.options.Domain }

// Registry returns how to reach the hub's OCI registry. A path of the hub's URL is not
// part of it: OCI clients look for /v2/ at the root of a host.
func (c *Client) Registry() (host string, plainHTTP bool, transport http.RoundTripper) {
	return c.base.Host, c.base.Scheme == "http", c.http.Transport
}

// CloseIdleConnections closes the connections that no request uses.
func (c *Client) CloseIdleConnections() { c.http.CloseIdleConnections() }

// Get requests a path of package wire and returns the answer if its status is below 300.
// Any other status is an *Error.
func (c *Client) Get(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	return c.do(ctx, request{method: http.MethodGet, path: path, header: header})
}

// request is a request to the hub.
type request struct {
	method, path string
	query        url.Values
	header       http.Header
	body         []byte // JSON; nil: no body
	atRoot       bool   // path begins at the root of the host, not below the hub's URL
}

func (c *Client) do(ctx context.Context, r request) (*http.Response, error) {
	u := *c.base
	if r.atRoot {
		u.Path = ""
	}
	u.Path += r.path
	u.RawQuery = r.query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	maps.Copy(req.Header, c.options.Header)
	maps.Copy(req.Header, r.header)
	if ctx.Value(copyKey{}) != nil {
		req.Header.Set(wire.CopyHeader, "1")
	}
	req.Header.Set("Accept-Encoding", "identity") // request the bytes as the hub stores them
	res, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("hub %s: %w", c.url, redactedCause(err))
	}
	if res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	return nil, c.errorOf(res)
}

// send sends a request whose answer has no body.
func (c *Client) send(ctx context.Context, r request) error {
	res, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// ask returns an answer in JSON of at most limit bytes; 0: of any length, for the commands, whose
// lists may be long.
func ask[T any](ctx context.Context, c *Client, r request, limit int64) (answer T, err error) {
	res, err := c.do(ctx, r)
	if err != nil {
		return answer, err
	}
	defer res.Body.Close()
	var body io.Reader = res.Body
	if limit > 0 {
		body = io.LimitReader(body, limit)
	}
	if err := json.NewDecoder(body).Decode(&answer); err != nil {
		return answer, fmt.Errorf("hub %s: decode the answer to %s %s: %w", c.url, r.method, r.path, err)
	}
	return answer, nil
}

// copyKey is the key of AsCopy's mark in a context.
type copyKey struct{}

// AsCopy returns a context whose requests have wire.CopyHeader: they do not count as starts.
func AsCopy(ctx context.Context) context.Context { return context.WithValue(ctx, copyKey{}, true) }
