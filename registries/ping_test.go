package registries

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
)

// schemes answers requests by scheme, after a pause. An empty status means that it fails.
type schemes map[string]struct {
	pause  time.Duration
	status int
}

func (s schemes) RoundTrip(req *http.Request) (*http.Response, error) {
	a := s[req.URL.Scheme]
	select {
	case <-time.After(a.pause):
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	}
	if a.status == 0 {
		return nil, errors.New("no answer by " + req.URL.Scheme)
	}
	return &http.Response{StatusCode: a.status, Body: http.NoBody, Request: req, Header: http.Header{}}, nil
}

// With and without TLS is asked at the same time, and an answer with TLS counts first. It is not
// waited for long.
func TestPing(t *testing.T) {
	const rtt = 50 * time.Millisecond
	for what, c := range map[string]struct {
		answers schemes
		plain   bool          // without TLS
		took    time.Duration // until the answer
		err     string
	}{
		"both":           {schemes{"https": {3 * rtt, 200}, "http": {2 * rtt, 200}}, false, 3 * rtt, ""},
		"a long path":    {schemes{"https": {9 * rtt, 401}, "http": {6 * rtt, 401}}, false, 9 * rtt, ""},
		"only TLS":       {schemes{"https": {3 * rtt, 401}, "http": {rtt, 0}}, false, 3 * rtt, ""},
		"no TLS":         {schemes{"https": {2 * rtt, 0}, "http": {2 * rtt, 200}}, true, 2 * rtt, ""},
		"TLS is dropped": {schemes{"https": {time.Hour, 0}, "http": {rtt, 200}}, true, secureTime, ""},
		"slow":           {schemes{"https": {time.Hour, 0}, "http": {2 * secureTime, 200}}, true, 4 * secureTime, ""},
		"none":           {schemes{"https": {rtt, 0}, "http": {rtt, 0}}, false, rtt, "no answer by https; "},
		"broken":         {schemes{"https": {rtt, 0}, "http": {rtt, 503}}, false, rtt, "503"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				registry, err := name.NewRegistry("registry.test", name.Insecure)
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				challenge, err := ping(t.Context(), registry, c.answers)
				took := time.Since(began)
				if c.err != "" {
					if err == nil || !strings.Contains(err.Error(), c.err) {
						t.Errorf("error %v, want one with %q", err, c.err)
					}
				} else if err != nil || challenge.Insecure != c.plain {
					t.Errorf("got %+v, error %v, want an answer without TLS: %t", challenge, err, c.plain)
				}
				if took != c.took {
					t.Errorf("it took %s, want %s", took, c.took)
				}
			})
		})
	}
}

// If a registry fails for the same reason with and without TLS, the error says it once.
func TestSameReason(t *testing.T) {
	registry, err := name.NewRegistry("registry.test", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	reason := errors.New("it has no public address")
	_, stop, err := byScheme(t.Context(), registry, func(context.Context, string) (int, error) { return 0, reason })
	stop()
	if !errors.Is(err, reason) || err.Error() != reason.Error() {
		t.Errorf("error %q, want %q", err, reason)
	}
}
