//go:build e2e

package commands

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// adminToken is the token that allows changes of the hub's images.
const adminToken = "the-token-of-the-administrators"

// A hub with a certificate accepts only HTTPS. Commands, skopeo and a mount without a node reject
// the certificate unless they are configured to trust it.
func TestTLS(t *testing.T) {
	const address, url = foreignIP + ":7443", "https://" + foreignIP + ":7443"
	dir := t.TempDir()
	hub := []string{"--root", filepath.Join(dir, "root"), "--listen", address}
	run(t, nil, append([]string{lighter, "hub"}, hub...)...).bad(t, 2, "tls_cert", "plain_http")
	run(t, nil, append([]string{lighter, "hub", "--tls-cert", hubTrust.file}, hub...)...).bad(t, 2, "tls_key")
	run(t, nil, append([]string{lighter, "hub", "--tls-cert", hubTrust.file, "--tls-key", hubTrust.file, "--open"},
		hub...)...).bad(t, 1, hubTrust.file)
	secure := append(hub, "--tls-cert", hubTrust.file, "--tls-key", hubTrust.key)
	run(t, nil, append([]string{lighter, "hub"}, secure...)...).bad(t, 2, "everybody who reaches "+address,
		"admin_token_file", "admin_listen", "open")
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(adminToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "hub.log")
	stop, err := startHub(log, append(secure, "--admin-token-file", token)...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	trusting := []string{"--hub", url, "--ca-file", hubTrust.file}
	layout := writeLayout(t, map[string]v1.Image{"1": makeImage(t, "linux/amd64", "over TLS")})
	run(t, nil, append([]string{lighter, "add", "oci:" + layout, "over/tls:1"}, trusting...)...).bad(t, 1,
		"--token-file")
	good(t, append([]string{lighter, "add", "--token-file", token, "oci:" + layout, "over/tls:1"}, trusting...)...)
	if r := run(t, []string{"LIGHTER_TOKEN_FILE=" + token},
		append([]string{lighter, "verify", "over/tls:1"}, trusting...)...); r.code != 0 {
		t.Errorf("verify with the token: exit %d, want 0: %s", r.code, r.stderr)
	}
	run(t, nil, lighter, "images", "--hub", url).bad(t, 1, "certificate")
	run(t, nil, lighter, "images", "--hub", "http://"+address, "--plain-http").bad(t, 2, "400")
	run(t, nil, lighter, "images", "--hub", url, "--ca-file", hubTrust.key).bad(t, 2, "no certificate")

	// skopeo trusts the certificate if it is in a directory that skopeo is given.
	certs := filepath.Join(dir, "certs")
	if err := os.MkdirAll(certs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(hubTrust.file, filepath.Join(certs, "ca.crt")); err != nil {
		t.Fatal(err)
	}
	push := []string{"skopeo", "copy", "--quiet", "--dest-cert-dir", certs, "oci:" + layout + ":1", "docker://" +
		address + "/by/skopeo:1"}
	if r := run(t, nil, push...); r.code == 0 {
		t.Error("skopeo pushed without the token, want an error")
	}
	good(t, append(push, "--dest-creds", "anybody:"+adminToken)...)
	back := filepath.Join(dir, "back")
	good(t, "skopeo", "copy", "--quiet", "--src-cert-dir", certs, "docker://"+address+"/over/tls:1", "oci:"+back+":1")
	if r := run(t, nil, "skopeo", "inspect", "docker://"+address+"/over/tls:1"); r.code == 0 {
		t.Error("skopeo accepted an unknown certificate, want an error")
	}

	// A mount without a node checks the certificate, too.
	logText, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	_, key, _ := strings.Cut(string(logText), `keys="[`)
	key, _, _ = strings.Cut(key, "]")
	at := filepath.Join(dir, "at")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	mount := []string{lighter, "mount", "--root", filepath.Join(dir, "node"), "--hub-key", key, "--hub", url}
	run(t, nil, append(mount, "over/tls:1", at)...).bad(t, 1, "certificate")
	good(t, append(mount, "--ca-file", hubTrust.file, "over/tls:1", at)...)
	text, err := os.ReadFile(filepath.Join(at, "text"))
	if err != nil || string(text) != "over TLS" {
		t.Errorf("the file text of the mounted image: got %q, %v, want \"over TLS\"", text, err)
	}
	good(t, lighter, "unmount", at)
}
