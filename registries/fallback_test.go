package registries

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
)

// Registries without a login in the configuration are read with those of the fallback: the
// first one that it has for a repository. After a refusal it is asked afresh. While it has
// none, it is asked again soon.
func TestFallback(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	f.basic = true
	r := open(t, Registry{Host: "127.0.0.1", Private: true, PlainHTTP: true})
	password, asked, refused := "", 0, 0
	r.SetFallback(func(_ context.Context, repository string, afresh bool) [][]byte {
		if asked++; afresh {
			refused++
		}
		if repository != f.host+"/team/a" || password == "" {
			return nil
		}
		login := func(user, password string) []byte {
			return fmt.Appendf(nil, `{"auths": {%q: {"username": %q, "password": %q}}}`, f.host, user, password)
		}
		return [][]byte{[]byte("no JSON"), login("hub", password), login("hub", "second")}
	})
	s := source(t, r, f.host+"/team/a")
	if err := has(t, s); err == nil || asked == 0 {
		t.Errorf("without a login: %v, asked %d times; want that it is refused", err, asked)
	}
	s.mu.Lock()
	if again := time.Until(s.now.until); again > noLoginLife {
		t.Errorf("without a login: the fallback is asked again after %s, want %s", again, noLoginLife)
	}
	s.mu.Unlock()
	password = secret
	if err := has(t, s); err != nil {
		t.Errorf("with the login of a new pod: %v", err)
	}
	f.with(func() { f.password = "changed" })
	password, refused = "changed", 0
	if err := has(t, s); err != nil || refused != 1 {
		t.Errorf("with a changed login: %v, asked afresh %d times, want once", err, refused)
	}
	if err := has(t, source(t, r, f.host+"/team/b")); err == nil {
		t.Error("another repository is read with the login")
	}
	asked = 0
	own := open(t, Registry{Host: "127.0.0.1", Private: true, PlainHTTP: true,
		Logins: loginFile(t, f.host, "changed")})
	own.SetFallback(func(context.Context, string, bool) [][]byte { asked++; return nil })
	if err := has(t, source(t, own, f.host+"/team/a")); err != nil || asked != 0 {
		t.Errorf("a registry with a login of its own: %v, the fallback was asked %d times", err, asked)
	}
	if _, err := own.Session(mustRepository(t, f.host+"/team/a"), Access{}); err != nil || asked != 0 {
		t.Errorf("a user without a login: %v, the fallback was asked %d times", err, asked)
	}
}

func mustRepository(t *testing.T, text string) name.Repository {
	t.Helper()
	repository, err := name.NewRepository(text)
	if err != nil {
		t.Fatal(err)
	}
	return repository
}

// The repository of an image is named as containerd does.
func TestRepositoryOfImage(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{
		"nginx": "docker.io/library/nginx", "team/a:1": "docker.io/team/a",
		"registry.test:5000/a/b:1":                          "registry.test:5000/a/b",
		"registry.test/a@sha256:" + fmt.Sprintf("%064d", 1): "registry.test/a", "A B": "",
	} {
		if got, err := RepositoryOfImage(image); got != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v; want %q", image, got, err, want)
		}
	}
}
