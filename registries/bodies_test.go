package registries

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
)

// A request whose login has expired is sent again with its body, if the body can be read again. Its
// body is closed in any case.
func TestBodiesAreSentAgain(t *testing.T) {
	f := startFake(t)
	r := open(t, Registry{Host: "127.0.0.1", Private: true, Logins: loginFile(t, f.host, secret)})
	parsed, err := name.NewRepository(f.host + "/a")
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.Session(parsed, Access{Own: true, Write: true})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.scope, "push") {
		t.Errorf("the scope is %q, want one for pushing", s.scope)
	}
	var got []string
	server := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		f.with(func() { got = append(got, string(b)) })
		f.ServeHTTP(w, req)
	})
	f.Config.Handler = server
	send := func(body io.Reader) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "PUT", f.URL+"/v2/a/x", body)
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Client{Transport: s, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close() // not read
		return res.StatusCode
	}
	expire := func() { f.with(func() { f.valid, got = map[string]bool{}, nil }) }
	if err := s.LogIn(t.Context()); err != nil {
		t.Fatal(err)
	}
	expire()
	if status := send(strings.NewReader("body")); status != http.StatusTemporaryRedirect ||
		strings.Count(strings.Join(got, ","), "body") != 2 {
		t.Errorf("status %d after the bodies %q, want the body twice, and the second accepted", status, got)
	}
	expire()
	if status := send(io.MultiReader(strings.NewReader("stream"))); status != http.StatusUnauthorized ||
		strings.Count(strings.Join(got, ","), "stream") != 1 {
		t.Errorf("status %d after the bodies %q, want the stream once, and 401", status, got)
	}
	if status := send(io.MultiReader(strings.NewReader("stream"))); status != http.StatusTemporaryRedirect {
		t.Errorf("status %d for the next stream, want that of a valid login", status)
	}
	closed := &closing{Reader: strings.NewReader("body")}
	f.Close()
	other, err := r.Session(parsed, Access{Own: true}) // another scope has no grant yet
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "PUT", f.URL+"/v2/a/x", closed)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := other.RoundTrip(req); err == nil || !closed.closed {
		t.Errorf("a request to a registry that is away: %v, %v, body closed %t", res, err, closed.closed)
	}
}

// closing is a body that knows whether it is closed.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}
