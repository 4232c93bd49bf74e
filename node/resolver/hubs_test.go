package resolver

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/store/origin"
	"lighter/wire/client"
)

// While one hub is silent or fails, another hub answers pulls, also directly after a pull of an
// unknown image.
func TestAnotherHubAnswers(t *testing.T) {
	for name, fails := range map[string]http.HandlerFunc{
		"silent": func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() },
		"broken": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := httptest.NewServer(fails)
			defer first.Close()
			second := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				answer, err := stack(3)(req.Context(), filepath.Base(req.URL.Path))
				if errors.Is(err, chunk.ErrNotFound) {
					http.NotFound(w, req)
					return
				}
				_ = json.NewEncoder(w).Encode(answer) // fails if the client has closed the connection
			}))
			defer second.Close()
			log := slog.New(slog.DiscardHandler)
			hubs, err := origin.New(log, client.Options{URL: first.URL}, client.Options{URL: second.URL})
			if err != nil {
				t.Fatal(err)
			}
			keys, err := NewKeys(t.TempDir(), []string{index.FormatKey(key.Public().(ed25519.PublicKey))}, hubs)
			if err != nil {
				t.Fatal(err)
			}
			r, err := New(Config{
				Root: t.TempDir(), Trust: TrustChain, Answerers: []Answerer{NewHub(hubs)},
				LastReceived: hubs.LastReceived, Keys: keys, Log: log,
				Trees: &fakeTrees{t: t, onDisk: map[chunk.ID]bool{}},
			})
			if err != nil {
				t.Fatal(err)
			}
			if claim(t, r, 10) {
				t.Error("a chain that no hub knows is lazy")
			}
			if got := pull(t, r, 3); !slices.Equal(got, []bool{true, true, true, true}) {
				t.Errorf("lazy: %v, want all", got)
			}
		})
	}
}
