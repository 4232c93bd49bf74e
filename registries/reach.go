package registries

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"time"

	"lighter/public"
)

const (
	headerTimeout = 30 * time.Second
	idlePerHost   = 16 // connections
)

// reach returns what sends requests to a registry, to its token server, or where a redirect points.
// plainHTTP allows plain HTTP to all of them.
func (r *Registries) reach(plainHTTP bool) *public.Transport {
	return &public.Transport{
		Allows:    func(host string) bool { return r.tableOf(host).Private },
		PlainHTTP: func(host string) bool { return plainHTTP || r.tableOf(host).PlainHTTP },
		Remedy: func(host string) string {
			return fmt.Sprintf("to allow it, add a table [[registry]] with host = %q and private = true "+
				"to the configuration", host)
		},
		Next: byTable{r},
	}
}

// Direct returns what sends requests to a host, HOST[:PORT], as its table says, without a login.
// Neither the table's bounds nor a rest of the host delay these requests. They have connections of
// their own. answerTime is how long after a request its answer has to begin.
func (r *Registries) Direct(host string, answerTime time.Duration) *public.Transport {
	to := r.reach(false)
	to.Next = r.newTransport(r.tableOf(host).roots, answerTime)
	return to
}

// newTransport returns a transport of a table. It trusts the machine's authorities if roots is nil.
// answerTime is how long after a request its answer has to begin.
func (r *Registries) newTransport(roots *x509.CertPool, answerTime time.Duration) *http.Transport {
	return r.reach(false).Bind(&http.Transport{
		TLSClientConfig:       &tls.Config{RootCAs: roots},
		ResponseHeaderTimeout: answerTime,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConnsPerHost:   idlePerHost,
		DisableCompression:    true, // digests are of the bytes as they are sent
		ReadBufferSize:        256 << 10,
		ForceAttemptHTTP2:     true,
	})
}

// byTable sends each request with the transport of its host's table.
type byTable struct{ *Registries }

// RoundTrip implements http.RoundTripper.
func (b byTable) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("User-Agent", "lighter")
	t := b.tableOf(req.URL.Host)
	h := t.hostOf(hostPort(req))
	isProbe, err := h.allow(req.Context())
	if err != nil {
		return nil, err
	}
	res, err := t.transport.RoundTrip(req)
	if err != nil {
		b.observer.Requested(t.Host, 0)
		return nil, err
	}
	b.observer.Requested(t.Host, res.StatusCode)
	isNew, err := h.note(res, isProbe)
	if isNew {
		b.observer.Rests(t.Host)
	}
	if err != nil {
		_ = res.Body.Close() // not read
		return nil, err
	}
	return res, nil
}

// hostPort returns the destination of a request as HOST:PORT.
func hostPort(req *http.Request) string { return withPort(req.URL.Host, req.URL.Scheme) }

// withPort returns HOST:PORT for the HOST[:PORT] of a URL, in lower case.
func withPort(host, scheme string) string {
	at := parsePattern(host)
	if at.port == "" {
		at.port = map[string]string{"http": "80", "https": "443"}[scheme]
	}
	return net.JoinHostPort(at.host, at.port)
}
