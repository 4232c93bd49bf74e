//go:build e2e

package registries

import (
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"lighter/test/testkit/distribution"
)

// A private image of a real registry is read, whose certificate is of a private authority,
// with each kind of login. Without one it reads nothing.
func TestRealRegistry(t *testing.T) {
	const password = distribution.Password
	host, ca := distribution.StartPrivate(t)
	ref, err := name.ParseReference(host + "/team/image:1")
	if err != nil {
		t.Fatal(err)
	}
	image, err := random.Image(100_000, 2)
	if err != nil {
		t.Fatal(err)
	}
	trusting := http.DefaultTransport.(*http.Transport).Clone()
	trusting.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	if err := remote.Write(ref, image, remote.WithTransport(trusting),
		remote.WithAuth(&authn.Basic{Username: "hub", Password: password})); err != nil {
		t.Fatal(err)
	}
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	layer := manifest.Layers[1]

	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	helper := newTool(t, `{"Username": "hub", "Secret": "`+password+`"}`)
	plugin := newTool(t, response("Registry", `"auth": {"127.0.0.1": {"username": "hub", "password": "`+password+`"}}`))
	for what, table := range map[string]Registry{
		"logins":        {Logins: loginFile(t, host, password)},
		"password_file": {Username: "hub", PasswordFile: file},
		"helper":        {Helper: "test", Env: helper.env()},
		"plugin":        {Plugin: []string{pluginName}, PluginCacheMinutes: 1, Env: plugin.env()},
	} {
		table.Host, table.Private, table.CA = host, true, ca
		r := open(t, table)
		s := source(t, r, host+"/team/image")
		if m, err := s.read(t, "/manifests/1"); err != nil || len(m) == 0 {
			t.Errorf("%s: the manifest: %v", what, err)
		}
		if b, err := s.read(t, "/blobs/"+layer.Digest.String()); err != nil || int64(len(b)) != layer.Size {
			t.Errorf("%s: %d bytes of the layer, %v, want %d", what, len(b), err, layer.Size)
		}
		catalog, err := r.RegistrySession(host, "registry:catalog:*", false)
		if err != nil {
			t.Fatal(err)
		}
		res, err := catalog.Client().Get("https://" + host + "/v2/_catalog")
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(b), "team/image") {
			t.Errorf("%s: the catalog: %s, %v", what, b, err)
		}
		_ = res.Body.Close()
	}
	for what, table := range map[string]Registry{"401": {CA: ca}, "certificate": {}} {
		table.Host, table.Private = host, true
		s, err := logIn(t, open(t, table), host+"/team/image")
		if err == nil {
			_, err = s.read(t, "/manifests/1")
		}
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("without a login or a certificate: error %v, want one about %s", err, what)
		}
	}
	if _, err := logIn(t, open(t, Registry{Host: host, CA: ca, Logins: loginFile(t, host, password)}),
		host+"/team/image"); err == nil || !strings.Contains(err.Error(), "not a public address") {
		t.Errorf("without private: error %v", err)
	}
}
