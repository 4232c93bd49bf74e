// Package certificate makes self-signed certificates for test servers on 127.0.0.1. A certificate
// is valid for a day.
package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"testing"
	"time"
)

// Certificate is a certificate and its key, both in PEM form.
type Certificate struct{ Cert, Key []byte }

// New makes a certificate for 127.0.0.1, with name as its common name.
func New(tb testing.TB, name string) Certificate {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return Certificate{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}

// Write writes the certificate and the key to files.
func (c Certificate) Write(tb testing.TB, cert, key string) {
	tb.Helper()
	for file, content := range map[string][]byte{cert: c.Cert, key: c.Key} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
}

// Pair returns the certificate in the form that TLS servers use.
func (c Certificate) Pair(tb testing.TB) tls.Certificate {
	tb.Helper()
	pair, err := tls.X509KeyPair(c.Cert, c.Key)
	if err != nil {
		tb.Fatal(err)
	}
	return pair
}
