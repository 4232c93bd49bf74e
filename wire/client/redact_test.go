package client_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/store/origin"
	"lighter/wire/client"
)

const (
	secret    = "the-secret-password"
	signature = "the-secret-signature"
)

// No error shows the password in the hub's URL, or the signature in the URL of a store that the hub
// redirects to.
func TestErrorsShowNoSecret(t *testing.T) {
	for _, raw := range []string{"ftp://user:" + secret + "@hub", "http://user:" + secret + "@hub",
		"http://user:" + secret + "@",
		"http://user:" + secret + "@hub:port", "//user:" + secret + "@hub", "user:" + secret + "@hub",
		"http://user:" + secret + "@a b/%zz",
		"https://hub?token=" + secret + "%zz", "x?" + secret, "x#" + secret, "x?a@" + secret, "x#a@" + secret,
		"user:" + secret + "?a@x", "user:a?" + secret + "@x"} {
		_, err := client.New(client.Options{URL: raw})
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("got %v, want no secret in it", err)
		}
	}
	for _, raw := range []string{"http://" + secret + "@localhost:7070/a/",
		"http://user:" + secret + "@localhost:7070/a?token=" + secret + "#" + secret} {
		if got := newClient(t, client.Options{URL: raw}).URL(); got != "http://localhost:7070/a" {
			t.Errorf("got the URL %s, want http://localhost:7070/a", got)
		}
	}
	answers := map[string]http.HandlerFunc{
		"refused":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"not JSON": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
		"broken off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "{")
		},
		"cut off": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"sent away": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://user:"+secret+"@127.0.0.1:1/x?signature="+signature, http.StatusFound)
		},
		"sent far away": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://user:"+secret+"@203.0.113.1/x?signature="+signature, http.StatusFound)
		},
		"sent nowhere": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://user:"+secret+"@%zz/?signature="+signature)
			w.WriteHeader(http.StatusFound)
		},
		"sent to another scheme": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "ftp://user:"+secret+"@127.0.0.1/x?signature="+signature, http.StatusFound)
		},
	}
	for what, answer := range answers {
		t.Run(what, func(t *testing.T) {
			server := httptest.NewServer(answer)
			defer server.Close()
			url := "http://user:" + secret + "@" + strings.TrimPrefix(server.URL, "http://")
			c, err := client.New(client.Options{URL: url})
			if err != nil {
				t.Fatal(err)
			}
			_, chainErr := c.Chain(t.Context(), "sha256:x")
			_, keyErr := c.Keys(t.Context())
			_, imagesErr := c.Images(t.Context(), "")
			f, err := origin.New(slog.New(slog.DiscardHandler), client.Options{URL: url})
			if err != nil {
				t.Fatal(err)
			}
			indexErr := f.Index(t.Context(), chunk.ID{}, func(io.Reader) error { return nil })
			all := fmt.Sprint(errors.Join(chainErr, keyErr, imagesErr, indexErr), c.URL())
			if chainErr == nil || keyErr == nil || imagesErr == nil {
				t.Errorf("got %v, want three errors", all)
			}
			for _, s := range []string{secret, signature, base64.StdEncoding.EncodeToString([]byte("user:" + secret))} {
				if strings.Contains(all, s) {
					t.Errorf("%q is in: %s", s, all)
				}
			}
		})
	}
}
