package pushthrough

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"lighter/hub/pullthrough"
	"lighter/hub/registries"
)

// pass runs a service in front of a registry until the test ends, and returns its URL. No
// repository is ingested.
func pass(t *testing.T, registry http.HandlerFunc) string {
	t.Helper()
	_, url := start(t, registry)
	return url
}

// start does the same, and returns the service, too.
func start(t *testing.T, registry http.HandlerFunc) (s *Service, url string) {
	t.Helper()
	upstream := httptest.NewServer(registry)
	t.Cleanup(upstream.Close)
	host := strings.TrimPrefix(upstream.URL, "http://")
	local := registries.Registry{Reached: registries.Reached{Host: host, Private: true}}
	all, err := registries.New([]registries.Registry{local}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	f, err := all.Front(host)
	if err != nil {
		t.Fatal(err)
	}
	s = New(t.Context(), Config{Stall: 200 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Registries: []Registry{{Names: []string{"127.0.0.1"}, Front: f,
			Rule: pullthrough.Registry{Host: host, Repositories: []string{"none"}}}}})
	hub := httptest.NewServer(s)
	t.Cleanup(func() {
		hub.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, hub.URL
}

// A registry that stalls ends its requests, and the client learns it. A client that is slow does
// not matter.
func TestStalledRegistry(t *testing.T) {
	release := make(chan struct{})
	url := pass(t, func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/v2/":
		case "/v2/reads/none":
			<-release
		case "/v2/answers/half":
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			<-release
		case "/v2/reads/all":
			_, _ = io.Copy(w, req.Body)
		}
	})
	defer close(release)
	large := strings.Repeat("x", 64<<20) // more than the buffers of connections have room for
	res, err := http.Post(url+"/v2/reads/none", "", strings.NewReader(large))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a registry that does not read: %s, want 503", res.Status)
	}
	res, err = http.Get(url + "/v2/answers/half")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("a registry that sends half of an answer: %q and no error", b)
	}
	_ = res.Body.Close()
	slow, more := io.Pipe()
	go func() {
		for range 4 {
			time.Sleep(100 * time.Millisecond)
			_, _ = io.WriteString(more, "piece")
		}
		_ = more.Close()
	}()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPatch, url+"/v2/reads/all", slow)
	if err != nil {
		t.Fatal(err)
	}
	if res, err = http.DefaultClient.Do(req); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(res.Body); err != nil || string(b) != strings.Repeat("piece", 4) {
		t.Errorf("a slow client: %q, %v, want its four pieces", b, err)
	}
	_ = res.Body.Close()
}

// Locations and links that lead to the registry lead to the hub; others stay. What the client and
// the registry say is passed on as it is.
func TestWhatIsPassedOn(t *testing.T) {
	url := pass(t, func(w http.ResponseWriter, req *http.Request) {
		host := "http://" + req.Host
		w.Header().Set("Location", map[string]string{"/own": host + "/some/place?state=a%2Fb", "/path": "/some/place",
			"/else": "https://blobs.example.org/x?signature=1"}[req.URL.Path])
		w.Header().Set("Link", "<"+host+"/v2/_catalog?last=a>; rel=\"next\"")
		w.Header().Set("X-Query", req.URL.RawQuery)
		w.Header().Set("X-Authorization", req.Header.Get("Authorization"))
		w.Header().Set("X-Agent", req.UserAgent())
		w.Header().Set("X-Forwarded", req.Header.Get("X-Forwarded-For")+req.Header.Get("Forwarded"))
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, `{"errors": []}`)
	})
	for path, want := range map[string]string{"/own": "/some/place?state=a%2Fb", "/path": "/some/place",
		"/else": "https://blobs.example.org/x?signature=1"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			url+path+"?b=%2F;x&ns=r.example.org&a=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer token")
		req.Header.Set("User-Agent", "client/1")
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusTeapot || string(b) != `{"errors": []}` {
			t.Errorf("%s: %s, %q, %v, want the registry's answer", path, res.Status, b, err)
		}
		for name, want := range map[string]string{"Location": want, "Link": `</v2/_catalog?last=a>; rel="next"`,
			"X-Query": "b=%2F;x&a=1", "X-Authorization": "Bearer token", "X-Agent": "client/1", "X-Forwarded": ""} {
			if got := res.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
	}
}

// Some registries have uploads at paths that do not tell the repository.
func TestUploadElsewhere(t *testing.T) {
	s, url := start(t, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Location", "http://"+req.Host+"/uploads/1?state=a")
		w.WriteHeader(http.StatusAccepted)
	})
	for _, request := range []string{"POST /v2/team/app/blobs/uploads/", "PATCH /uploads/1?state=a"} {
		method, path, _ := strings.Cut(request, " ")
		req, err := http.NewRequestWithContext(t.Context(), method, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if got := s.fronts[0].uploadsTo("/uploads/1"); got != "team/app" || res.StatusCode != http.StatusAccepted {
			t.Errorf("after %s (%s): the upload is of %q, want team/app", request, res.Status, got)
		}
	}
	if got := s.fronts[0].uploadsTo("/uploads/2"); got != "" {
		t.Errorf("another path is an upload of %q", got)
	}
}
