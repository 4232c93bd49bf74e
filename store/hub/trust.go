package hub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"os"

	"lighter/renewed"
)

// trustingTransport trusts the certificates that a file has now, beside the system's. A
// transport cannot change what it trusts, so it has another whenever the file changes: the
// connections of the former are used no more, and end after their idle time.
type trustingTransport struct {
	now *renewed.Value[*http.Transport]
}

// trusting returns a trustingTransport of the transports that transport makes.
func trusting(file string, transport func(*tls.Config) *http.Transport) (http.RoundTripper, error) {
	read := func() (*http.Transport, error) {
		secure, err := trust(file)
		if err != nil {
			return nil, err
		}
		return transport(secure), nil
	}
	now, err := renewed.Read(slog.Default(), read, file)
	if err != nil {
		return nil, fmt.Errorf("read the hub's certificates: %w", err)
	}
	return trustingTransport{now}, nil
}

// RoundTrip implements http.RoundTripper.
func (t trustingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	return t.now.Get(req.Context()).RoundTrip(req)
}

// CloseIdleConnections is what http.Client calls.
func (t trustingTransport) CloseIdleConnections() {
	t.now.Get(context.Background()).CloseIdleConnections()
}

func trust(file string) (*tls.Config, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate in PEM form", file)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}
