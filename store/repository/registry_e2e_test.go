//go:build e2e

package repository

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	image1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/registries"
	"lighter/store"
	"lighter/test/testkit/certificate"
	"lighter/test/testkit/distribution"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/port"
)

// pushed is an image in a registry, with an artifact that refers to it.
type pushed struct {
	host     string
	manifest digest.Digest
	layer    []byte
	artifact digest.Digest
}

// pushBoth pushes an image and an artifact as hub.
func pushBoth(t *testing.T, host string) (p pushed) {
	t.Helper()
	p.host = host
	trusting := http.DefaultTransport.(*http.Transport).Clone()
	trusting.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	options := []remote.Option{remote.WithTransport(trusting),
		remote.WithAuth(&authn.Basic{Username: distribution.User, Password: distribution.Password})}
	write := func(tag string, image image1.Image) digest.Digest {
		ref, err := name.ParseReference(host + team + ":" + tag)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(ref, image, options...); err != nil {
			t.Fatal(err)
		}
		id, err := image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return digest.Digest(id.String())
	}
	image, err := random.Image(300_000, 1)
	if err != nil {
		t.Fatal(err)
	}
	p.manifest = write("1", image)
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	from, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	if p.layer, err = io.ReadAll(from); err != nil {
		t.Fatal(err)
	}
	subject, err := partial.Descriptor(image)
	if err != nil {
		t.Fatal(err)
	}
	artifact := mutate.MediaType(mutate.ConfigMediaType(empty.Image, artifactType), types.OCIManifestSchema1)
	p.artifact = write("artifact", mutate.Subject(artifact, *subject).(image1.Image))
	return p
}

// check reads everything of an image with a login, and nothing without one.
func (p pushed) check(t *testing.T, table registries.Registry) *Repository {
	t.Helper()
	table.Logins = loginFile(t, p.host, distribution.User, distribution.Password)
	r := openAt(t, p.host, table)
	if err := r.Check(t.Context(), p.manifest); err != nil {
		t.Error(err)
	}
	var m v1.Manifest
	for _, which := range []string{"1", p.manifest.String()} {
		got, err := r.Manifest(t.Context(), which)
		if err == nil {
			err = json.Unmarshal(got.Bytes, &m)
		}
		if err != nil || got.Digest != p.manifest || got.MediaType != m.MediaType {
			t.Errorf("manifest %s: %+v, %v", which, got, err)
		}
	}
	if config, err := r.Blob(t.Context(), m.Config, 1<<20); err != nil || int64(len(config)) != m.Config.Size {
		t.Errorf("the config: %d bytes, %v", len(config), err)
	}
	layer := m.Layers[0]
	for _, c := range [][2]int64{{0, 1}, {100_001, 65_536}, {layer.Size - 1, 1}, {0, layer.Size}} {
		if b, err := rangeOf(t, r, layer, c[0], c[1]); err != nil || !bytes.Equal(b, p.layer[c[0]:c[0]+c[1]]) {
			t.Errorf("range %v of the layer: %d bytes, %v", c, len(b), err)
		}
	}
	err := r.Whole(t.Context(), layer, func(a store.Answer) error {
		b, err := io.ReadAll(a.Body)
		if !bytes.Equal(b, p.layer) {
			t.Errorf("the layer: %d other bytes", len(b))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	referrers, err := r.Referrers(t.Context(), p.manifest, artifactType)
	if err != nil || len(referrers) != 1 || referrers[0].Digest != p.artifact {
		t.Errorf("referrers: %v, %v, want %s", referrers, err, p.artifact)
	}
	wrong := v1.Descriptor{Digest: digest.FromString("another"), Size: 10}
	if _, err := rangeOf(t, r, wrong, 0, 1); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("a missing blob: error %v, want %v", err, chunk.ErrNotFound)
	}
	longer := v1.Descriptor{Digest: layer.Digest, Size: layer.Size + 1}
	if _, err := rangeOf(t, r, longer, layer.Size, 1); !errors.As(err, new(*chunk.InvalidError)) {
		t.Errorf("a range behind the blob: error %v, want an InvalidError", err)
	}
	for _, logins := range []string{"", loginFile(t, p.host, distribution.User, "wr0ng")} {
		table.Logins = logins
		if err := openAt(t, p.host, table).Check(t.Context(), p.manifest); !errors.Is(err, ErrDenied) {
			t.Errorf("without a right login: error %v, want %v", err, ErrDenied)
		}
	}
	return r
}

// A private repository of a real registry with TLS and passwords is read.
func TestPasswords(t *testing.T) {
	host, ca := distribution.StartPrivate(t)
	pushBoth(t, host).check(t, registries.Registry{CA: ca})
}

// tokenServer is a token server as Docker's protocol has it. The registry trusts its certificate.
type tokenServer struct {
	key    *ecdsa.PrivateKey
	cert   []byte // DER
	issued atomic.Int64
	expiry atomic.Int64 // of tokens, in seconds from now
}

func (s *tokenServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	user, password, ok := req.BasicAuth()
	if ok && (user != distribution.User || password != distribution.Password) {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	access := []any{}
	if kind, rest, isScope := strings.Cut(req.FormValue("scope"), ":"); ok && isScope {
		repository, actions, _ := strings.Cut(rest, ":")
		access = append(access, map[string]any{"type": kind, "name": repository,
			"actions": strings.Split(actions, ",")})
	}
	now := time.Now().Unix()
	claims := map[string]any{"iss": "lighter", "aud": "registry", "exp": now + s.expiry.Load(), "nbf": now - 10,
		"iat": now, "jti": fmt.Sprint(s.issued.Add(1)), "sub": user, "access": access}
	encode := func(v any) string {
		b, _ := json.Marshal(v) // maps of strings and numbers
		return base64.RawURLEncoding.EncodeToString(b)
	}
	text := encode(map[string]any{"typ": "JWT", "alg": "ES256", "x5c": [][]byte{s.cert}}) + "." + encode(claims)
	sum := sha256.Sum256([]byte(text))
	a, b, err := ecdsa.Sign(rand.Reader, s.key, sum[:])
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	signature := append(a.FillBytes(make([]byte, 32)), b.FillBytes(make([]byte, 32))...)
	fmt.Fprintf(w, `{"token": %q, "expires_in": 300}`, text+"."+base64.RawURLEncoding.EncodeToString(signature))
}

// startTokens starts a registry that wants tokens, and its token server.
func startTokens(t *testing.T) (host string, s *tokenServer) {
	t.Helper()
	dir := t.TempDir()
	made := certificate.New(t, "tokens")
	made.Write(t, filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	cert, _ := pem.Decode(made.Cert)
	der, _ := pem.Decode(made.Key)
	key, err := x509.ParsePKCS8PrivateKey(der.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	s = &tokenServer{key: key.(*ecdsa.PrivateKey), cert: cert.Bytes}
	s.expiry.Store(300)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	if host, err = port.Loopback(); err != nil {
		t.Fatal(err)
	}
	distribution.StartAt(t, host, "", fmt.Sprintf(
		"auth: {token: {realm: %q, service: registry, issuer: lighter, rootcertbundle: %q}}",
		// The library refuses addresses of other hosts that are not public.
		strings.Replace(server.URL, "127.0.0.1", "localhost", 1)+"/token",
		filepath.Join(dir, "cert.pem")))
	return host, s
}

// A private repository of a real registry with tokens is read, also when the tokens expire before
// the time that the token server has said.
func TestTokens(t *testing.T) {
	host, s := startTokens(t)
	p := pushBoth(t, host)
	s.expiry.Store(2 - 60) // the registry accepts a token for 60 s more
	before := s.issued.Load()
	r := p.check(t, registries.Registry{})
	layer := v1.Descriptor{Digest: digest.FromBytes(p.layer), Size: int64(len(p.layer))}
	eventually.Holds(t, "a third token of the session", func() bool {
		if _, err := rangeOf(t, r, layer, 5, 10); err != nil {
			t.Fatal(err)
		}
		return s.issued.Load() > before+6
	})
}
