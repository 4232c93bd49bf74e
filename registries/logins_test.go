package registries

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
)

// passwordOf returns the password that a table has for a repository.
func passwordOf(t *testing.T, p provider, repository string) string {
	t.Helper()
	c, err := p.credentials(t.Context(), repository, false)
	if err != nil {
		t.Fatal(err)
	}
	return c.Password
}

func providerOf(t *testing.T, r Registry) provider {
	t.Helper()
	r.Host = "*.example.org"
	if err := Check([]Registry{r}); err != nil {
		t.Fatal(err)
	}
	p, err := newProvider(r, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The login with the longest matching path is used, in whichever form Docker has written its key.
// Helpers are asked for their registries, and the store for all without a login.
func TestLogins(t *testing.T) {
	t.Parallel()
	helper := newTool(t, `{"ServerURL": "x", "Username": "u", "Secret": "of the helper"}`)
	auth := func(password string) string { return base64.StdEncoding.EncodeToString([]byte("u:" + password)) }
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, fmt.Appendf(nil, `{"auths": {"https://index.docker.io/v1/": {"auth": %q},
		"a.example.org": {"auth": %q}, "a.example.org/team/": {"auth": %q}, "https://a.example.org/team/x": {"auth": %q},
		"b.example.org": {"auth": %q}, "b.example.org/own": {"auth": %q}, "c.example.org": {}},
		"credHelpers": {"b.example.org": "test"}, "credsStore": "test"}`,
		auth("hub"), auth("a"), auth("team"), auth("x"), auth("b"), auth("own")), 0o600); err != nil {
		t.Fatal(err)
	}
	p := providerOf(t, Registry{Logins: path, Env: helper.env()})
	for repository, want := range map[string]string{
		"docker.io/library/a": "hub", "a.example.org/b": "a", "a.example.org/team": "team",
		"a.example.org/team/y": "team", "a.example.org/team/x": "x", "a.example.org/teams": "a",
		"b.example.org/x": "of the helper", "b.example.org/own/x": "own", "c.example.org/x": "of the helper",
		"a.example.org:5000/x": "of the helper",
	} {
		if got := passwordOf(t, p, repository); got != want {
			t.Errorf("%s: got the login %q, want %q", repository, got, want)
		}
	}
}

// Several keys may stand for one place. In whichever order they are read, the first one with a
// login counts.
func TestKeysOfOnePlace(t *testing.T) {
	t.Parallel()
	login := func(name string) authn.AuthConfig { return authn.AuthConfig{Username: name} }
	c := dockerConfig{Auths: map[string]authn.AuthConfig{
		"docker.io": {}, "https://index.docker.io/v1/": login("hub"),
		"a.example.org": login("first"), "http://a.example.org": login("second"),
		"https://a.example.org/": login("third"),
	}, CredHelpers: map[string]string{"b.example.org": "first", "https://b.example.org": "second"}}
	k := kept{answer: answer{auth: map[string]authn.AuthConfig{"docker.io": login("first"),
		"index.docker.io": login("second"), "registry-1.docker.io": login("third")}}}
	for range 20 { // maps are read in any order
		for repository, want := range map[string]string{"docker.io/library/a": "hub", "a.example.org/x": "first"} {
			if got, _ := c.find(repository); got.Username != want {
				t.Fatalf("%s: got the login %q, want %q", repository, got.Username, want)
			}
		}
		if got := c.helperOf("b.example.org"); got != "first" {
			t.Fatalf("got the helper %q, want first", got)
		}
		if got, err := k.pick("docker.io/library/a"); err != nil || got.Username != "first" {
			t.Fatalf("got the login %q of an answer, %v, want first", got.Username, err)
		}
	}
}

// A helper is asked as Docker asks it, once for all repositories of a registry. Its error is shown
// without secrets. That it has no login is no error.
func TestHelper(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"test", filepath.Join(programs, helperName)} {
		helper := newTool(t, `{"Username": "u", "Secret": "s"}`)
		p := providerOf(t, Registry{Helper: name, Env: helper.env()})
		for _, repository := range []string{"a.example.org/x", "a.example.org/y", "docker.io/library/a"} {
			if got := passwordOf(t, p, repository); got != "s" {
				t.Errorf("%s: %s: got the login %q, want s", name, repository, got)
			}
		}
		want := []string{`["get"] a.example.org ""`, `["get"] https://index.docker.io/v1/ ""`}
		if got := helper.calls(t); !slices.Equal(got, want) {
			t.Errorf("%s was called as %q, want %q", name, got, want)
		}
		helper.say(t, `{"Username": "<token>", "Secret": "identity"}`)
		if c, err := p.credentials(t.Context(), "b.example.org/x", false); err != nil || c.IdentityToken != "identity" {
			t.Errorf("%s: an identity token: got %v, %v", name, c.AuthConfig, err)
		}
		helper.say(t, notFound+"!")
		if got := passwordOf(t, p, "c.example.org/x"); got != "" {
			t.Errorf("%s: got the login %q, want none", name, got)
		}
		for answer, want := range map[string]string{"!no session, password=" + secret: "no session, password=…",
			`{"Username": 5, "Secret": "` + secret + `"}`: "not JSON with Username"} {
			helper.say(t, answer)
			_, err := p.credentials(t.Context(), fmt.Sprintf("d%d.example.org/x", len(answer)), false)
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) {
				t.Errorf("%s: error %v, want %q", name, err, want)
			}
		}
	}
}

// response is a plugin's answer.
func response(keyType, rest string) string {
	return `{"apiVersion": "` + pluginVersion + `", "kind": "CredentialProviderResponse", "cacheKeyType": "` + keyType +
		`", ` + rest + `}`
}

// A plugin is asked as the kubelet asks it. Its answers are kept for as long, and for the images,
// as it says.
func TestPlugin(t *testing.T) {
	t.Parallel()
	const auth = `"auth": {"*.example.org": {"username": "u", "password": "any"},
		"a.example.org": {"username": "u", "password": "a"},
		"a.example.org/team": {"username": "u", "password": "team"}}`
	for _, c := range []struct {
		keyType, life string
		calls         int // for two repositories of one registry and one of another, twice each
	}{
		{"Image", `"cacheDuration": "1h", `, 3}, {"Registry", `"cacheDuration": "1h0m0s", `, 2},
		{"Global", `"cacheDuration": "1h", `, 1}, {"Global", `"cacheDuration": "0s", `, 6},
		{"Image", ``, 3}, {"Global", `"cacheDuration": null, `, 1},
	} {
		plugin := newTool(t, response(c.keyType, c.life+auth))
		p := providerOf(t, Registry{Plugin: []string{pluginName, "--role", "$(id) x"}, PluginCacheMinutes: 10,
			Env: append(plugin.env(), "HUB_SECRET")})
		for range 2 {
			for repository, want := range map[string]string{"a.example.org/x": "a", "a.example.org/team/x": "team",
				"b.example.org/x": "any"} {
				if got := passwordOf(t, p, repository); got != want {
					t.Errorf("%+v: %s: got the login %q, want %q", c, repository, got, want)
				}
			}
		}
		calls := plugin.calls(t)
		if len(calls) != c.calls {
			t.Errorf("%+v: %d calls, want %d", c, len(calls), c.calls)
		}
		want := `["--role" "$(id) x"] {"apiVersion":"` + pluginVersion + `","kind":"CredentialProviderRequest","image":"`
		if !strings.HasPrefix(calls[0], want) || !strings.HasSuffix(calls[0], `.example.org/`+"x\"} \""+secret+`"`) &&
			!strings.Contains(calls[0], "/team/x") {
			t.Errorf("the plugin was called as %s, want %s…", calls[0], want)
		}
	}
}

// The answer of a plugin is asked for again before it expires, and once after it was refused, but
// not by each of the many sessions that were refused at the same time.
func TestAnswersAreRenewed(t *testing.T) {
	t.Parallel()
	plugin := newTool(t, response("Registry", `"cacheDuration": "1h", "auth": {"a.example.org": {"password": "1"}}`))
	a := providerOf(t, Registry{Plugin: []string{pluginName}, Env: plugin.env()}).(*asked)
	const repository = "a.example.org/x"
	passwordOf(t, a, repository)
	age := func(change func(*kept)) {
		k, _ := a.answers.Get(byRegistry(repository))
		change(&k)
		a.answers.Add(byRegistry(repository), k)
	}
	want := func(what string, calls int, afresh bool) {
		t.Helper()
		if _, err := a.credentials(t.Context(), repository, afresh); err != nil {
			t.Fatal(err)
		}
		if got := len(plugin.calls(t)); got != calls {
			t.Errorf("%s: %d calls, want %d", what, got, calls)
		}
	}
	want("a young answer was refused", 1, true)
	age(func(k *kept) { k.got = k.got.Add(-2 * youngest) })
	want("an answer is used", 1, false)
	want("an answer was refused", 2, true)
	want("another session was refused", 2, true)
	age(func(k *kept) { k.until = time.Now() })
	want("an answer has expired", 3, false)
}

// A password or token is read from its file, and again when that has changed.
func TestSecretFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\r\n")
	password := providerOf(t, Registry{Username: "u", PasswordFile: path})
	token := providerOf(t, Registry{TokenFile: path})
	if c, err := token.credentials(t.Context(), "a.example.org/x", false); err != nil || c.RegistryToken != "first" {
		t.Errorf("got the token %q, %v, want first", c.RegistryToken, err)
	}
	write("the second")
	for end := time.Now().Add(time.Minute); passwordOf(t, password, "a.example.org/x") != "the second"; {
		if time.Now().After(end) {
			t.Fatal("the changed file was not read again")
		}
		time.Sleep(50 * time.Millisecond)
	}
	for _, text := range []string{"", "\n", "a\nb\n"} {
		write(text)
		_, err := newProvider(Registry{TokenFile: path}, nil)
		if err == nil || !strings.Contains(err.Error(), "one line") {
			t.Errorf("%q: error %v, want one about its lines", text, err)
		}
	}
}

// The error about a table says what is wrong with it. No error quotes a file of logins.
func TestWrongTables(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]Registry{
		"set only one of":      {Logins: "/x", Helper: "y"},
		"set both or none":     {Username: "x"},
		"password_file: set":   {PasswordFile: "/x"},
		"env is for":           {TokenFile: "/x", Env: []string{"A=b"}},
		"env: want":            {Helper: "x", Env: []string{"=b"}},
		"docker-credential":    {Helper: "../x"},
		"plugin: want":         {Plugin: []string{""}},
		"plugin_cache_minutes": {Plugin: []string{"x"}, PluginCacheMinutes: 1 << 40},
		"requests_per_second":  {RequestsPerSecond: -1},
	} {
		r.Host = "a.example.org"
		if err := Check([]Registry{r}); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "registry 1 (a.example.org)") {
			t.Errorf("%+v: error %v, want it to mention %q", r, err, want)
		}
	}
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, []byte(`{"auths": {"a": {"auth": "`+secret+`"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, r := range map[string]Registry{
		"logins: ": {Logins: path}, "ca: " + path: {CA: path}, "helper: ": {Helper: "no-such"},
		"plugin: ": {Plugin: []string{"/no/such"}}, "token_file: ": {TokenFile: "/no/such"},
	} {
		r.Host = "a.example.org"
		if _, err := New([]Registry{r}, nil, nil); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: error %v, want a line with %q and no secret", r, err, want)
		}
	}
}

// Whatever a plugin prints, its answer is bounded, and an error quotes nothing of it.
func FuzzPlugin(f *testing.F) {
	f.Add([]byte(response("Image", `"cacheDuration": "1h", "auth": {"*.example.org/p": {"username": "u", "password": "p"}}`)))
	f.Add([]byte(response("Global", `"cacheDuration": "-1h"`)))
	f.Add([]byte(response("", `"auth": null`)))
	f.Add([]byte(`{"kind": 5}`))
	f.Fuzz(func(t *testing.T, output []byte) {
		a, err := decodePlugin(output, time.Hour)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\"{") {
				t.Errorf("error %q quotes the output", err)
			}
			return
		}
		if a.life < 0 || a.life > longestAnswer || len(a.auth) > maxLogins {
			t.Errorf("the answer is not bounded: %v, %d logins", a.life, len(a.auth))
		}
		k := kept{answer: a, until: time.Now()}
		c, err := k.pick("a.example.org/p/q")
		if err != nil {
			t.Error(err)
		}
		if _, isOurs := a.auth["b.example.net"]; isOurs && len(a.auth) == 1 && c.Password != "" {
			t.Error("the login of another registry was picked")
		}
		_ = a.key("a.example.org/p/q")
	})
}
