// Package hub promises to speak to a Lighter hub over HTTP.
//
// What a node needs while containers run is immutable and named by its digest:
// indexes, units. A dumb web server or a cache can serve those: Mirror writes the
// files. Origins are the hubs and mirrors of a node: a thing comes from the first
// that gives it. It refuses to know what is right: who asks judges each answer
// where it is read, and statements are for whoever knows the pinned keys.
package hub

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/wire"
)

const (
	dialTimeout   = 3 * time.Second
	headerTimeout = 15 * time.Second
	// maxAnswer bounds JSON answers to a node.
	maxAnswer = 4 << 20
	// maxConns bounds the connections to one hub. What asks has lower bounds of
	// its own (store.Units), so that nobody waits for a connection; maxIdle is
	// how many are kept.
	maxConns = 512
	maxIdle  = 128
	// pingAfter and pingTimeout find out that an HTTP/2 connection is dead, on
	// which all requests would wait.
	pingAfter   = 3 * time.Second
	pingTimeout = 3 * time.Second
)

// Client speaks to one hub. It is safe for concurrent use.
type Client struct {
	options Options
	base    *url.URL
	url     string // what may be shown of base
	scope   string
	dialer  dialer
	way     way
	wrong   wrongAnswers
	http    *http.Client
}

// Options say how to reach a hub.
type Options struct {
	URL       string // http://HOST:PORT, https://HOST[:PORT] or unix:/PATH, a Unix socket
	Scope     string // default: DefaultScope
	PlainHTTP bool   // allow http to a host that is not this one
	CAFile    string // certificates (PEM) to trust beside the system's
	TokenFile string // its token goes with what changes something on the hub; see ReadToken
	Copies    bool   // what is fetched is copied, and nobody starts it for that
}

// NewClient checks the options. It does not connect.
func NewClient(o Options) (*Client, error) {
	address, socket := o.URL, ""
	if path, ok := strings.CutPrefix(o.URL, "unix:"); ok && strings.HasPrefix(path, "/") {
		address, socket = "http://localhost", path
	}
	base, err := url.Parse(address)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("%q is not the URL of a hub: want http://HOST:PORT, https://HOST or unix:/PATH", redacted(o.URL))
	}
	if err := o.allows(base); err != nil {
		return nil, err
	}
	if o.Scope == "" {
		o.Scope = wire.DefaultScope
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	c := &Client{options: o, base: base, url: redacted(base.String()), scope: o.Scope,
		dialer: newDialer(socket, base.Scheme == "http")}
	if socket != "" {
		c.url = o.URL
	}
	c.http = &http.Client{Transport: c.transport(nil), CheckRedirect: c.follow}
	if o.CAFile != "" {
		if c.http.Transport, err = trusting(o.CAFile, c.transport); err != nil {
			return nil, err
		}
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

// transport makes a transport to the hub, which trusts the system's certificates if nothing
// else is given.
func (c *Client) transport(secure *tls.Config) *http.Transport {
	t := &http.Transport{
		DialContext:           c.dialer.dial,
		TLSClientConfig:       secure,
		ResponseHeaderTimeout: headerTimeout, TLSHandshakeTimeout: headerTimeout,
		MaxConnsPerHost: maxConns, MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: time.Minute,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true, // units and indexes are compressed already
		ForceAttemptHTTP2:      true,
		ReadBufferSize:         64 << 10,
	}
	if c.dialer.socket == "" {
		t.Proxy = http.ProxyFromEnvironment
	}
	return t
}

// prepare has connections made for a start, if there will be one and the way is long.
func (c *Client) prepare() {
	if !c.options.Copies && c.way.isLong() {
		c.dialer.make(startSpares)
	}
}

// allows refuses plain HTTP that leaves this machine, unless it was allowed.
func (o *Options) allows(u *url.URL) error {
	if u.Scheme == "http" && !o.PlainHTTP && !wire.IsLoopback(u.Hostname()) {
		return fmt.Errorf("%s://%s is not on this machine: use https, or allow plain HTTP with --plain-http", u.Scheme, u.Host)
	}
	return nil
}

// maxRedirects is how often an object may have moved.
const maxRedirects = 3

// follow goes where a hub redirects to, for what is verified when it comes. What
// changes something, carries a credential or is believed as it comes (the key)
// goes to the hub that was named, or nowhere.
func (c *Client) follow(req *http.Request, via []*http.Request) error {
	first := via[0]
	to := req.URL.Scheme + "://" + req.URL.Host
	switch {
	case c.dialer.socket != "":
		return fmt.Errorf("it redirects to %s, and every connection goes to %s", to, c.url)
	case first.Method != http.MethodGet || first.URL.Path == c.base.Path+wire.KeyPath(c.scope):
		return fmt.Errorf("it redirects to %s: if that is right, give it as the hub's URL", to)
	case len(via) > maxRedirects:
		return fmt.Errorf("it redirects more than %d times", maxRedirects)
	case first.URL.Scheme == "https" && req.URL.Scheme != "https":
		return fmt.Errorf("it redirects from https to %s", to)
	}
	return c.options.allows(req.URL)
}

// Loopback tells whether the hub is on this machine.
func (c *Client) Loopback() bool { return wire.IsLoopback(c.base.Hostname()) }

// URL returns the hub's URL, without what may be a credential: what stands before the
// host, and a query.
func (c *Client) URL() string { return c.url }

// Registry says how to reach the hub's OCI registry: its HOST[:PORT], whether it
// speaks plain HTTP, and by which transport. A path of the hub's URL is not part
// of it, as OCI clients look for /v2/ at the root of a host.
func (c *Client) Registry() (host string, plainHTTP bool, transport http.RoundTripper) {
	return c.base.Host, c.base.Scheme == "http", c.http.Transport
}

// Error is a hub's answer that it could not do what was asked.
type Error struct {
	Status  int    // HTTP status
	Message string // from the answer's body, at most a few kilobytes
	// RetryAfter is how long the hub wants to be left alone; 0: it does not say.
	RetryAfter time.Duration
	// Missing says that it is the hub's own answer that it does not have it (MissingHeader).
	Missing bool
}

func (e *Error) Error() string { return e.Message }

// Is makes a hub's own 404 chunk.ErrNotFound.
func (e *Error) Is(target error) bool { return target == chunk.ErrNotFound && e.Missing }

// Refusal tells whether the hub works and does not do it, however often it is
// asked: it has nothing of that name, or not for us.
func (e *Error) Refusal() bool {
	return e.Status >= 400 && e.Status < 500 && e.Status != http.StatusRequestTimeout && e.Status != http.StatusTooManyRequests
}

// retryAfter reads the header of that name: seconds, or a date.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if date, err := http.ParseTime(text); err == nil {
		return max(0, time.Until(date))
	}
	return 0
}

// do sends a request and returns the answer if its status is below 300.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, body []byte) (*http.Response, error) {
	return c.doWith(ctx, nil, method, path, query, body)
}

// doWith does the same with more headers.
func (c *Client) doWith(ctx context.Context, header http.Header, method, path string, query url.Values, body []byte) (*http.Response, error) {
	u := *c.base
	u.Path += path
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.options.Copies {
		req.Header.Set(wire.CopyHeader, "1")
	}
	maps.Copy(req.Header, header)
	req.Header.Set("Accept-Encoding", "identity") // the bytes as they are stored
	res, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("hub %s: %w", c.URL(), causeOf(err))
	}
	if res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 16<<10))
	var said struct{ Error string }
	if json.Unmarshal(text, &said) != nil || said.Error == "" {
		said.Error = fmt.Sprintf("hub %s answers %s", c.URL(), res.Status)
	}
	return nil, &Error{Status: res.StatusCode, Message: said.Error, RetryAfter: retryAfter(res.Header),
		Missing: res.StatusCode == http.StatusNotFound && res.Header.Get(wire.MissingHeader) != ""}
}

// getJSON reads an answer of at most maxAnswer bytes, or, for the people's
// commands, of any length that their lists need: limit 0.
func (c *Client) getJSON(ctx context.Context, path string, query url.Values, limit int64, into any) error {
	res, err := c.do(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var body io.Reader = res.Body
	if limit > 0 {
		body = io.LimitReader(body, limit)
	}
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("hub %s: understand the answer: %w", c.URL(), err)
	}
	return nil
}

// Chain asks what the hub knows of a chain. ErrNotFound: it does not know it. Here anybody's
// 404 is enough, as mirrors have no other: at worst one image is unpacked as usual.
func (c *Client) Chain(ctx context.Context, chain string) (*wire.Chain, error) {
	var answer wire.Chain
	if err := c.lookUp(ctx, wire.ChainPath(c.scope, chain), &answer); err != nil {
		return nil, err
	}
	return &answer, nil
}

// lookUp asks what a pull asks first, which says how long a round trip is. Anybody's 404 is
// enough, as for Chain.
func (c *Client) lookUp(ctx context.Context, path string, into any) error {
	ctx, trip := timed(ctx)
	err := c.getJSON(ctx, path, nil, maxAnswer, into)
	if said := new(Error); errors.As(err, &said) && (said.Status == http.StatusNotFound || said.Status == http.StatusGone) {
		said.Missing = true
	}
	if err == nil || errors.Is(err, chunk.ErrNotFound) { // errors are often of others on the way
		c.way.trip(trip.took())
	}
	return err
}

// Manifest asks what the hub knows of the image with a manifest. ErrNotFound: it has none.
func (c *Client) Manifest(ctx context.Context, digest string) (*wire.Manifest, error) {
	var answer wire.Manifest
	if err := c.lookUp(ctx, wire.ManifestPath(c.scope, digest), &answer); err != nil {
		return nil, err
	}
	return &answer, nil
}

// Tree asks for the statement of a chain's tree, which the hub makes if need be.
func (c *Client) Tree(ctx context.Context, chain string) (*index.Statement, error) {
	var answer index.Statement
	if err := c.getJSON(ctx, wire.TreePath(c.scope, chain), nil, maxAnswer, &answer); err != nil {
		return nil, err
	}
	return &answer, nil
}

// Keys asks for the hub's public keys, of which there is one at least. Whoever trusts
// them without having them from elsewhere trusts the way to the hub.
func (c *Client) Keys(ctx context.Context) ([]ed25519.PublicKey, error) {
	return c.checkedKeys(ctx, func() error { return nil })
}

// checkedKeys asks for the keys, and believes them if check, which is called when the
// answer has begun, says so.
func (c *Client) checkedKeys(ctx context.Context, check func() error) (keys []ed25519.PublicKey, err error) {
	res, err := c.do(ctx, http.MethodGet, wire.KeyPath(c.scope), nil, nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if err := check(); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, 4096))
	if err != nil {
		return nil, fmt.Errorf("hub %s: read the key: %w", c.URL(), err)
	}
	if keys, err = wire.ParseKeys(b); err != nil {
		return nil, fmt.Errorf("hub %s: read the key: %w", c.URL(), err)
	}
	return keys, nil
}
