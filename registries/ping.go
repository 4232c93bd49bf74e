package registries

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// secureTime is how long an answer without TLS waits for one with TLS.
const secureTime = 300 * time.Millisecond

// ping asks a registry how to log in. If the registry may be one without TLS, ping asks with and
// without TLS at the same time. The library does so one after the other, which takes two RTTs more.
// An answer with TLS counts first.
func ping(ctx context.Context, registry name.Registry, next http.RoundTripper) (*transport.Challenge, error) {
	if registry.Scheme() == "https" {
		return transport.Ping(ctx, registry, next)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ask := func(scheme string) <-chan pinged { // its goroutine ends with ctx
		answer := make(chan pinged, 1)
		go func() {
			c, err := pingBy(ctx, scheme, registry, next)
			answer <- pinged{c, err}
		}()
		return answer
	}
	secure, plain := ask("https"), ask("http")
	began, patience := time.Now(), (<-chan time.Time)(nil)
	var failed, without *pinged
	waited := false
	for {
		select {
		case a := <-secure:
			if a.err == nil {
				return a.challenge, nil
			}
			failed = &a
		case a := <-plain:
			without = &a
			patience = time.After(max(secureTime-time.Since(began), time.Since(began)))
		case <-patience:
			waited = true
		}
		switch {
		case without == nil:
		case without.err == nil && (failed != nil || waited):
			return without.challenge, nil
		case without.err != nil && failed != nil:
			return nil, fmt.Errorf("%w; %w", failed.err, without.err)
		}
	}
}

// pinged is the result of a ping.
type pinged struct {
	challenge *transport.Challenge
	err       error
}

// pingBy asks a registry by one scheme only.
func pingBy(
	ctx context.Context, scheme string, registry name.Registry, next http.RoundTripper,
) (*transport.Challenge, error) {
	only := &onlyBy{scheme: scheme, next: next}
	c, err := transport.Ping(ctx, registry, only)
	var answered *transport.Error
	switch {
	case err == nil:
		return c, nil
	case errors.As(err, &answered):
		return nil, answered
	case only.err != nil:
		return nil, fmt.Errorf("ask %s://%s/v2/: %w", scheme, registry.RegistryStr(), only.err)
	}
	return nil, err
}

// onlyBy refuses requests by another scheme. The library sends them one after the other.
type onlyBy struct {
	scheme string
	next   http.RoundTripper
	err    error // of the last request by the scheme
}

func (o *onlyBy) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != o.scheme {
		return nil, errors.New("not asked by " + req.URL.Scheme)
	}
	res, err := o.next.RoundTrip(req)
	o.err = err
	return res, err
}
