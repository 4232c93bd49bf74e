package client

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

// trustingTransport trusts the certificates that a file has now, and the system's. The roots of an
// http.Transport cannot be changed, so each change of the file makes a new transport. The
// connections of the previous transport are not used again and end after their idle time.
type trustingTransport struct {
	now *renewed.Value[*http.Transport]
}

// trusting returns a trustingTransport. newTransport makes its transports.
func trusting(
	log *slog.Logger, file string, newTransport func(*tls.Config) *http.Transport,
) (*trustingTransport, error) {
	read := func() (*http.Transport, error) {
		config, err := rootsOf(file)
		if err != nil {
			return nil, err
		}
		return newTransport(config), nil
	}
	now, err := renewed.Read(log, read, file)
	if err != nil {
		return nil, fmt.Errorf("read the hub's certificates: %w", err)
	}
	return &trustingTransport{now}, nil
}

// RoundTrip implements http.RoundTripper.
func (t *trustingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	return t.now.Get(req.Context()).RoundTrip(req)
}

// CloseIdleConnections is called by http.Client.
func (t *trustingTransport) CloseIdleConnections() {
	t.now.Get(context.Background()).CloseIdleConnections()
}

// rootsOf returns a TLS configuration that trusts the system's certificates and a file's. If the
// system's cannot be read, it trusts the file's only.
func rootsOf(file string) (*tls.Config, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s contains no certificate in PEM form", file)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}
