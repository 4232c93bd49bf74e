package registries

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"lighter/wire"
)

const (
	// defaultLife is the life of a token whose server does not say it (Docker's token protocol).
	defaultLife = time.Minute
	// longestLife bounds the time after which a registry is asked again how to log in.
	longestLife = 10 * time.Minute
	// renewBefore is the share of a token's life that is left when it is renewed.
	renewBefore = 0.2
)

// Session sends requests to a registry as a user of it. It logs in before the first request, or,
// without credentials, when the registry wants that. It adds the credentials only to requests to
// the registry itself: other hosts, to which the registry redirects, get none. It is safe for
// concurrent use.
type Session struct {
	registry   name.Registry
	scope      string   // empty: no token is asked for
	repository string   // HOST[:PORT]/PATH, for which login has credentials
	login      provider // nil: without a login
	own        bool     // login is that of the table
	onlyTLS    bool     // the credentials are sent without TLS only within this machine
	plainHTTP  bool
	table      *table
	next       http.RoundTripper

	logins singleflight.Group

	mu  sync.Mutex // guards the following
	now *grant     // nil: none yet
}

// grant is what a registry has granted.
type grant struct {
	scheme string    // of the registry's URLs
	header string    // Authorization; empty: none
	until  time.Time // it is renewed then
}

// RoundTrip sends a request. If its credentials are refused, it is sent again with new ones, unless
// it has a body that cannot be read again.
func (s *Session) RoundTrip(req *http.Request) (*http.Response, error) {
	if !strings.EqualFold(req.URL.Host, s.registry.RegistryStr()) {
		req = req.Clone(req.Context())
		req.Header.Del("Authorization")
		return s.next.RoundTrip(req)
	}
	var challenge *transport.Challenge
	if isRead := req.Method == http.MethodGet || req.Method == http.MethodHead; isRead && s.mayBeOpen() {
		res, asks, err := s.first(req)
		if err != nil {
			return nil, s.loginError(err)
		}
		if asks == nil {
			return res, nil
		}
		challenge = asks
	}
	g, err := s.granted(req.Context(), nil, challenge)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // not sent
		}
		return nil, s.loginError(err)
	}
	res, err := s.next.RoundTrip(g.authorize(req))
	if err != nil || res.StatusCode != http.StatusUnauthorized {
		return res, err
	}
	renewed, err := s.granted(req.Context(), g, nil)
	isAnswer := err == nil && renewed.header == g.header || errors.As(err, new(*transport.Error))
	if isAnswer || req.Body != nil && req.GetBody == nil { // the registry's says as much as the token server's
		return res, nil
	}
	_ = res.Body.Close() // not read
	if err != nil {
		return nil, fmt.Errorf("log in again: %w", firstLine{err})
	}
	again := renewed.authorize(req)
	if req.GetBody != nil {
		if again.Body, err = req.GetBody(); err != nil {
			return nil, err
		}
	}
	return s.next.RoundTrip(again)
}

// authorize returns a request with the granted credentials.
func (g *grant) authorize(req *http.Request) *http.Request {
	req = req.Clone(req.Context())
	req.URL.Scheme = g.scheme
	req.Header.Del("Authorization")
	if g.header != "" {
		req.Header.Set("Authorization", g.header)
	}
	return req
}

// LogIn logs in, unless that was done before.
func (s *Session) LogIn(ctx context.Context) error {
	if _, err := s.granted(ctx, nil, nil); err != nil {
		return s.loginError(err)
	}
	return nil
}

// loginError returns the error of a failed login.
func (s *Session) loginError(err error) error {
	err = fmt.Errorf("log in to %s: %w", s.registry.RegistryStr(), firstLine{err})
	var failed *transport.Error
	if s.own && errors.As(err, &failed) && failed.StatusCode == http.StatusUnauthorized {
		return fmt.Errorf("%w: the login is refused: check it in the table [[registry]] of this host", err)
	}
	return err
}

// Client returns a client that sends its requests in the session. It sends requests for
// https://HOST[:PORT]/ without TLS if the registry has none, and if that is allowed.
func (s *Session) Client() *http.Client { return &http.Client{Transport: s} }

// PlainHTTP reports whether the registry may be read without TLS.
func (s *Session) PlainHTTP() bool { return s.plainHTTP }

// Transfers bounds the blobs that are read at a time from the registry. nil: no bound. Before the
// session's first request it is assumed that the registry has TLS.
func (s *Session) Transfers() *semaphore.Weighted {
	s.mu.Lock()
	g := s.now
	s.mu.Unlock()
	scheme := "https"
	if g != nil {
		scheme = g.scheme
	}
	return s.table.hostOf(withPort(s.registry.RegistryStr(), scheme)).transfers
}

// mayBeOpen reports whether the registry may serve the session without a login. It is not known
// yet.
func (s *Session) mayBeOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.login == nil && s.now == nil
}

// first sends a session's first request, which reads something, without a login. So a registry that
// wants none is not asked how to log in, and a pull waits for one RTT less. first returns no
// response if the registry wants a login, and says how, or if the response does not show which of
// two servers, with and without TLS, is the registry. Then the registry was asked.
func (s *Session) first(req *http.Request) (*http.Response, *transport.Challenge, error) {
	var isPlain atomic.Bool // the server has no TLS
	res, stop, err := byScheme(req.Context(), s.registry, func(ctx context.Context, by string) (*http.Response, error) {
		res, err := s.next.RoundTrip((&grant{scheme: by}).authorize(req.WithContext(ctx)))
		if errors.Is(err, http.ErrSchemeMismatch) {
			isPlain.Store(true)
		}
		return res, err
	})
	if err != nil {
		stop()
		return nil, nil, err
	}
	scheme := res.Request.URL.Scheme
	isCertain := s.registry.Scheme() == "https" || scheme == "http" && isPlain.Load()
	switch status := res.StatusCode; {
	case status == http.StatusUnauthorized:
		challenge, err := challengeOf(req.Context(), s.registry, res)
		stop()
		return nil, challenge, err
	// Some registries want a login, and say only when asked how.
	case status == http.StatusForbidden,
		!isCertain && status != http.StatusOK && status != http.StatusPartialContent:
		_ = res.Body.Close() // not read
		stop()
		challenge, err := ping(req.Context(), s.registry, s.next)
		return nil, challenge, err
	}
	s.mu.Lock()
	if s.now == nil {
		s.now = &grant{scheme: scheme, until: time.Now().Add(longestLife)}
	}
	s.mu.Unlock()
	res.Body = &stopped{res.Body, stop}
	return res, nil, nil
}

// stopped is a body that ends its request when it is closed.
type stopped struct {
	io.ReadCloser
	stop context.CancelFunc
}

func (s *stopped) Close() error {
	defer s.stop()
	return s.ReadCloser.Close()
}

// challengeOf returns how a registry wants logins, from a response that wants one. It closes the
// response.
func challengeOf(ctx context.Context, registry name.Registry, res *http.Response) (*transport.Challenge, error) {
	c, err := transport.Ping(ctx, registry, canned{res})
	if err != nil {
		return nil, err
	}
	c.Insecure = res.Request.URL.Scheme == "http"
	return c, nil
}

// canned answers each request with a response that has come already.
type canned struct{ *http.Response }

func (c canned) RoundTrip(*http.Request) (*http.Response, error) { return c.Response, nil }

// granted returns the current grant. It logs in if there is none, if it expires soon, or if it is
// the refused one. challenge says how, if that is known.
func (s *Session) granted(ctx context.Context, refused *grant, challenge *transport.Challenge) (*grant, error) {
	s.mu.Lock()
	g := s.now
	s.mu.Unlock()
	if g != nil && g != refused && time.Now().Before(g.until) {
		return g, nil
	}
	// The requests that wait for a login share one, which does not end with the first of them.
	done := s.logins.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loginTimeout)
		defer cancel()
		g, err := s.logIn(ctx, refused != nil, challenge)
		if err == nil {
			s.mu.Lock()
			s.now = g
			s.mu.Unlock()
		}
		return g, err
	})
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case r := <-done:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*grant), nil
	}
}

// logIn asks the registry how to log in, unless challenge says it, and does so. afresh: credentials
// that were used before were refused.
func (s *Session) logIn(ctx context.Context, afresh bool, challenge *transport.Challenge) (g *grant, err error) {
	if challenge == nil {
		if challenge, err = ping(ctx, s.registry, s.next); err != nil {
			return nil, err
		}
	}
	g = &grant{scheme: "https", until: time.Now().Add(longestLife)}
	if challenge.Insecure {
		g.scheme = "http"
	}
	var c credentials
	if s.login != nil {
		if c, err = s.login.credentials(ctx, s.repository, afresh); err != nil {
			return nil, err
		}
	}
	if c.AuthConfig != (authn.AuthConfig{}) {
		if err := s.mayLogIn(s.registry.RegistryStr(), challenge.Insecure); err != nil {
			return nil, err
		}
	}
	if !c.until.IsZero() {
		g.expire(c.until)
	}
	switch isBearer := strings.EqualFold(challenge.Scheme, "bearer"); {
	case c.RegistryToken != "":
		g.header = "Bearer " + c.RegistryToken
	case isBearer && s.scope != "":
		token, err := transport.Exchange(ctx, s.registry, authenticator(c.AuthConfig), &tokenServer{next: s.next},
			[]string{s.scope}, challenge)
		if err != nil {
			return nil, err
		}
		g.bear(token)
	case c.Username != "" && c.Password != "":
		g.header = "Basic " + base64.StdEncoding.EncodeToString([]byte(c.Username+":"+c.Password))
	}
	return g, nil
}

// mayLogIn returns an error if the credentials must not be sent to a host that answers without
// TLS.
func (s *Session) mayLogIn(host string, withoutTLS bool) error {
	if s.onlyTLS && withoutTLS && !wire.IsLoopback(parsePattern(host).host) {
		return errPlain
	}
	return nil
}

// tokenServer sends the requests of one login to a token server. It does not follow a redirect to
// another host with an identity token, which is in the request's body.
type tokenServer struct {
	next http.RoundTripper
	host string // of the first request; the requests of a login come one after the other
}

// RoundTrip sends a request.
func (t *tokenServer) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.host == "" {
		t.host = req.URL.Host
	}
	if req.Method == http.MethodPost && req.URL.Host != t.host {
		return nil, fmt.Errorf("the token server %s redirects the login to %s: the login is not sent there",
			t.host, req.URL.Host)
	}
	return t.next.RoundTrip(req)
}

// bear makes a token the granted credentials.
func (g *grant) bear(token *transport.Token) {
	text := token.AccessToken
	if text == "" {
		text = token.Token
	}
	g.header = "Bearer " + text
	life := time.Duration(token.ExpiresIn) * time.Second
	if life <= 0 {
		life = defaultLife
	}
	g.expire(time.Now().Add(life - time.Duration(renewBefore*float64(life))))
}

// expire makes a grant end at a time, if it does not end before.
func (g *grant) expire(at time.Time) {
	if at.Before(g.until) {
		g.until = at
	}
}

// authenticator returns credentials in the form of the library.
func authenticator(c authn.AuthConfig) authn.Authenticator {
	if c == (authn.AuthConfig{}) {
		return authn.Anonymous
	}
	return authn.FromConfig(c)
}

// firstLine is an error without its further lines, in which the library quotes the token server's
// response.
type firstLine struct{ error }

func (f firstLine) Error() string {
	line, _, _ := strings.Cut(f.error.Error(), "\n")
	return line
}

func (f firstLine) Unwrap() error { return f.error }
