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

// ping asks a registry how to log in.
func ping(ctx context.Context, registry name.Registry, next http.RoundTripper) (*transport.Challenge, error) {
	challenge, stop, err := byScheme(ctx, registry, func(ctx context.Context, scheme string) (*transport.Challenge,
		error) {
		return pingBy(ctx, scheme, registry, next)
	})
	stop()
	return challenge, err
}

// byScheme asks a registry with TLS. If the registry may be one without, byScheme asks with and
// without TLS at the same time. One after the other would take two RTTs more. An answer with TLS
// counts first. stop ends what belongs to the answer; it is never nil.
func byScheme[T any](
	ctx context.Context, registry name.Registry, ask func(ctx context.Context, scheme string) (T, error),
) (answer T, stop context.CancelFunc, err error) {
	if registry.Scheme() == "https" {
		ctx, stop := context.WithCancel(ctx)
		answer, err := ask(ctx, "https")
		return answer, stop, err
	}
	begin := func(scheme string) (<-chan reply[T], context.CancelFunc) { // its goroutine ends with ctx
		ctx, stop := context.WithCancel(ctx)
		answer := make(chan reply[T], 1)
		go func() {
			a, err := ask(ctx, scheme)
			answer <- reply[T]{a, err}
		}()
		return answer, stop
	}
	secure, stopSecure := begin("https")
	plain, stopPlain := begin("http")
	began, patience := time.Now(), (<-chan time.Time)(nil)
	var failed, without *reply[T]
	waited := false
	for {
		select {
		case a := <-secure:
			if a.err == nil {
				stopPlain()
				return a.answer, stopSecure, nil
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
			stopSecure()
			return without.answer, stopPlain, nil
		case without.err != nil && failed != nil:
			stopSecure()
			err := failed.err
			if without.err.Error() != err.Error() {
				err = fmt.Errorf("%w; %w", err, without.err)
			}
			return answer, stopPlain, err
		}
	}
}

// reply is what has come of a request by one scheme.
type reply[T any] struct {
	answer T
	err    error
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
