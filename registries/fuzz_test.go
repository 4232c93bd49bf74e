package registries

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
)

// Whatever a file as Docker's config.json has, a repository gets a login of its own registry, the
// same one each time. An error does not depend on what the file has, so it quotes nothing of it.
func FuzzDockerConfig(f *testing.F) {
	auth := base64.StdEncoding.EncodeToString([]byte("user:password"))
	add := func(format string, a ...any) { f.Add(fmt.Appendf(nil, format, a...)) }
	add(`{"auths": {"a.example.org": {"auth": %q}, "https://b.example.org/v2/": {"username": "u", "password": "p"}}}`, auth)
	add(`{"auths": {"a.example.org/team": {"auth": %q}, "a.example.org/team/x": {"identitytoken": "t"}}}`, auth)
	add(`{"auths": {"https://index.docker.io/v1/": {"auth": %q}, "docker.io": {}}, "credsStore": "store"}`, auth)
	add(`{"auths": {"a.example.org": {}}, "credHelpers": {"a.example.org": "one", "https://A.example.org": "two"}}`)
	add(`{"auths": {"a.example.org/": {"username": "1"}, "http://a.example.org": {"username": "2"}}}`)
	add(`{"auths": {"": {"auth": %q}, "/": {"auth": "%%"}, "a.example.org": null}}`, auth)
	add(`{"auths": {"a.example.org": {"auth": %q}}}`, base64.StdEncoding.EncodeToString([]byte("no colon")))
	add(`[]`)
	path := filepath.Join(f.TempDir(), "config.json") // each process has its own
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := readDockerConfig(path)
		if err != nil {
			if !strings.HasPrefix(err.Error(), path+" is not as Docker's config.json: want {\"auths\": {\"HOST\"") ||
				len(err.Error()) > len(path)+100 {
				t.Errorf("error %q", err)
			}
			return
		}
		for _, repository := range []string{"a.example.org/team/x", "docker.io/library/a", "a.example.org:5000/x"} {
			host := registryOf(repository)
			login, place := c.find(repository)
			if login != (authn.AuthConfig{}) && (registryOf(place) != host || !covers(place, repository)) {
				t.Errorf("%s: got a login of %q", repository, place)
			}
			for range 5 {
				if again, at := c.find(repository); again != login || at != place {
					t.Errorf("%s: got the logins of %q and %q in turn", repository, place, at)
				}
				if helper := c.helperOf(host); helper != c.helperOf(host) {
					t.Errorf("%s: got several helpers in turn, %q among them", repository, helper)
				}
			}
		}
	})
}

// Whatever a helper prints, its login is a password or an identity token, and nothing else. An
// error does not depend on the output, so it quotes nothing of it.
func FuzzHelper(f *testing.F) {
	for _, output := range []string{`{"ServerURL": "x", "Username": "u", "Secret": "s"}`,
		`{"Username": "<token>", "Secret": "identity"}`, `{"username": null, "SECRET": "s"}`, `{"Username": 5}`,
		`null`, `[]`, notFound, `{"Username": "u", "Secret": "s"} and more`} {
		f.Add([]byte(output))
	}
	_, wrong := decodeHelper(nil)
	f.Fuzz(func(t *testing.T, output []byte) {
		login, err := decodeHelper(output)
		switch {
		case err != nil && (err.Error() != wrong.Error() || login != authn.AuthConfig{}):
			t.Errorf("got %d bytes of a login, error %q", len(login.Password), err)
		case err == nil && login.IdentityToken != "" && login != authn.AuthConfig{IdentityToken: login.IdentityToken}:
			t.Error("the login has an identity token and more")
		case err == nil && login.IdentityToken == "" &&
			login != authn.AuthConfig{Username: login.Username, Password: login.Password}:
			t.Error("the login has more than a user name and a password")
		case login.Username == tokenUser:
			t.Error("an identity token is used as a password")
		}
	})
}
