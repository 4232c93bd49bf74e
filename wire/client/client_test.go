package client_test

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/store"
	"lighter/store/origin"
	"lighter/wire"
	"lighter/wire/client"
)

func newClient(t *testing.T, o client.Options) *client.Client {
	t.Helper()
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// calls are requests of each kind.
func calls(c *client.Client) map[string]func(context.Context) error {
	ignore := func(wire.Progress) {}
	return map[string]func(context.Context) error{
		"key": func(ctx context.Context) error { _, err := c.Keys(ctx); return err },
		"unit": func(ctx context.Context) error {
			f, err := origin.New(slog.New(slog.DiscardHandler), client.Options{URL: c.URL()})
			if err != nil {
				return err
			}
			return f.FetchUnit(ctx, chunk.Unit{}, func(store.Answer) error { return nil })
		},
		"images": func(ctx context.Context) error { _, err := c.Images(ctx, ""); return err },
		"remove": func(ctx context.Context) error { return c.Remove(ctx, "a") },
		"add": func(ctx context.Context) error {
			_, err := c.Add(ctx, wire.Add{Password: "secret"}, ignore)
			return err
		},
		"verify": func(ctx context.Context) error { _, err := c.Verify(ctx, "a", ignore); return err },
	}
}

// Only answers that are verified, or harmless, may come from another server.
func TestOnlyReadsAreRedirected(t *testing.T) {
	asked := make(chan string, 100)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		asked <- req.Method + " " + string(body)
		_, _ = w.Write([]byte("[]"))
	}))
	defer elsewhere.Close()
	for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, elsewhere.URL+"/secret?signature=1", status)
		}))
		for name, call := range calls(newClient(t, client.Options{URL: hub.URL})) {
			err := call(t.Context())
			isRead := name == "unit" || name == "images"
			if followed := len(asked) > 0; followed != isRead || followed != (err == nil) {
				t.Errorf("%s, redirected with status %d: followed: %t, error %v; want followed: %t, otherwise an error",
					name, status, followed, err, isRead)
			}
			if len(asked) > 0 {
				<-asked
			} else if !strings.Contains(err.Error(), elsewhere.URL) || strings.Contains(err.Error(), "signature") {
				t.Errorf("%s: got %v, want an error that names the other server, without its query", name, err)
			}
		}
		hub.Close()
	}
}

// With a Unix socket every connection goes to the socket, so a redirect cannot be followed.
func TestSocketIsNotRedirected(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hub.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked++
		http.Redirect(w, req, "http://127.0.0.1/elsewhere", http.StatusFound)
	})}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	_, err = newClient(t, client.Options{URL: "unix:" + path}).Images(t.Context(), "")
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1") || !strings.Contains(err.Error(), path) || asked != 1 {
		t.Errorf("%d requests: %v, want 1 and a refused redirect", asked, err)
	}
}

func TestRedirectsKeepToTheRulesOfTheURL(t *testing.T) {
	target := ""
	handler := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		http.Redirect(w, req, target, http.StatusFound)
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	if err := os.WriteFile(ca, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ hub, target, want string }{
		{plain.URL, "http://hub.example.org/", "not on this machine"},
		{secure.URL, "http://127.0.0.1:1/", "from https to http"},
		{plain.URL, plain.URL, "more than 3 redirects"},
	} {
		target = c.target
		_, err := newClient(t, client.Options{URL: c.hub, CAFile: ca}).Images(t.Context(), "")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("from %s to %s: got %v, want an error with %q", c.hub, c.target, err, c.want)
		}
	}
}

// If the stream of progress breaks off, the error says where to look for the operation.
func TestProgressIsCut(t *testing.T) {
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.WriteString(w, `{"step":"wait"}`+"\n")
		_ = http.NewResponseController(w).Flush()
		if req.URL.Query().Get("name") == "cut" {
			panic(http.ErrAbortHandler)
		}
	}))
	defer hub.Close()
	for _, name := range []string{"cut", "ended"} {
		_, err := newClient(t, client.Options{URL: hub.URL}).Verify(t.Context(), name, func(wire.Progress) {})
		if err == nil || !strings.Contains(err.Error(), "lighter jobs") || !strings.Contains(err.Error(), hub.URL) {
			t.Errorf("%s: %v, want an error that names the hub and lighter jobs", name, err)
		}
	}
}

// If the last line of a stream has an error with an HTTP status, the client returns the same error
// as for an answer with this status.
func TestProgressEndsWithAStatus(t *testing.T) {
	for line, want := range map[string]int{
		`"status":400`: http.StatusBadRequest, `"status":404`: http.StatusNotFound, `"images":[]`: 0,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"step":"wait"}`+"\n"+`{"done":true,"error":"no such thing",`+line+"}\n")
		}))
		_, err := newClient(t, client.Options{URL: server.URL}).Add(t.Context(), wire.Add{}, func(wire.Progress) {})
		server.Close()
		answer := new(client.Error)
		if is := errors.As(err, &answer); err == nil || err.Error() != "no such thing" || is != (want > 0) ||
			answer.Status != want || errors.Is(err, chunk.ErrNotFound) != (want == http.StatusNotFound) {
			t.Errorf("a last line with %s: %v, status %d, want %d", line, err, answer.Status, want)
		}
	}
}

// Requests with a context of AsCopy have the header CopyHeader, and other requests do not.
func TestAsCopy(t *testing.T) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		got = append(got, req.Header.Get(wire.CopyHeader))
	}))
	defer server.Close()
	c, err := client.New(client.Options{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	for _, ctx := range []context.Context{t.Context(), client.AsCopy(t.Context())} {
		res, err := c.Get(ctx, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	if !slices.Equal(got, []string{"", "1"}) {
		t.Errorf("got the headers %q, want none in the first request and 1 in the second", got)
	}
}
