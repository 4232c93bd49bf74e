package registries

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"lighter/public"
	"lighter/registries"
	"lighter/wire"
)

// frontTimeout is how long after the last byte of a client's request the registry has to begin its
// answer. Some registries read a whole blob once more before they accept it.
const frontTimeout = 10 * time.Minute

// findTimeout bounds the time to find out whether a registry has TLS.
const findTimeout = 60 * time.Second

// Front sends requests of clients to one registry, and returns the answers as they are. It never
// uses the hub's own logins. The clients have budgets of their own at the registry, so neither
// requests_per_second and connections nor a rest of the host delay them. It is safe for concurrent
// use.
type Front struct {
	table     string // host of the registry's table; empty: none
	plainHTTP bool   // the registry may be reached without TLS
	registry  name.Registry
	to        *public.Transport
	metrics   metrics

	mu     sync.Mutex // guards the following
	scheme string     // of the registry's URLs; empty: not known yet
}

// Front returns the front of the registry HOST[:PORT].
func (r *Registries) Front(host string) (*Front, error) {
	registry, err := name.NewRegistry(host)
	if err != nil {
		return nil, err
	}
	t := r.all.Table(host)
	f := &Front{table: t.Host, plainHTTP: t.PlainHTTP, registry: registry, to: r.all.Direct(host, frontTimeout),
		metrics: r.metrics}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fronts = append(r.fronts, f)
	return f, nil
}

// Host returns the HOST[:PORT] that is asked for the registry.
func (f *Front) Host() string { return f.registry.RegistryStr() }

// IsHost reports whether the HOST[:PORT] of a URL is the registry's.
func (f *Front) IsHost(host string) bool {
	return strings.EqualFold(host, f.Host()) ||
		f.Host() == name.DefaultRegistry && registries.IsDockerHub(host)
}

// RoundTrip sends a request to the registry, whatever the host of its URL.
func (f *Front) RoundTrip(req *http.Request) (*http.Response, error) {
	scheme, err := f.find(req.Context())
	if err != nil {
		return nil, fmt.Errorf("reach the registry: %w", err)
	}
	req = req.Clone(req.Context())
	req.URL.Scheme = scheme
	res, err := f.send(req)
	if err != nil {
		f.metrics.Requested(f.table, 0)
		return nil, err
	}
	f.metrics.Requested(f.table, res.StatusCode)
	return res, nil
}

func (f *Front) send(req *http.Request) (*http.Response, error) {
	req.URL.Host, req.Host = f.Host(), f.Host()
	return f.to.Send(req)
}

// find returns the scheme of the registry's URLs. Only a registry that may be read without TLS is
// asked, once: it has TLS if it answers so, whatever the answer.
func (f *Front) find(ctx context.Context) (scheme string, err error) {
	if !f.plainHTTP && !wire.IsLoopback((&url.URL{Host: f.Host()}).Hostname()) {
		return "https", nil
	}
	f.mu.Lock()
	scheme = f.scheme
	f.mu.Unlock()
	if scheme != "" {
		return scheme, nil
	}
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	for _, scheme = range []string{"https", "http"} {
		var req *http.Request
		if req, err = http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+f.Host()+"/v2/", nil); err != nil {
			return "", err
		}
		var res *http.Response
		if res, err = f.send(req); err == nil {
			_ = res.Body.Close() // not read
			f.mu.Lock()
			f.scheme = scheme
			f.mu.Unlock()
			return scheme, nil
		}
	}
	return "", err
}
