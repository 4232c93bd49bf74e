package client_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"lighter/wire"
	"lighter/wire/client"
)

// The token goes with requests of administrators, and with no others.
func TestTokenGoesWithRequestsOfAdministrators(t *testing.T) {
	const token = "0123456789abcdef"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	got := map[string]bool{} // request → whether it had the token
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got[req.Method+" "+req.URL.Path] = req.Header.Get("Authorization") == "Bearer "+token
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("[]"))
	}))
	defer hub.Close()
	for _, base := range []string{"", "/below"} {
		c, err := client.New(client.Options{URL: hub.URL + base, TokenFile: file})
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		// Only the requests count here, not what the clients make of the answers.
		_, _ = c.Holders(ctx, "")
		_, _ = c.Images(ctx, "")
		_ = c.Remove(ctx, "a:1")
		_, _ = c.SendHeld(ctx, wire.Held{})
		below := base + "/lighter/1/default/"
		for request, want := range map[string]bool{
			"GET " + below + "holders": true, "GET " + below + "images": false,
			"DELETE " + below + "images": true, "POST " + below + "held": false,
		} {
			mu.Lock()
			had, sent := got[request]
			mu.Unlock()
			if !sent || had != want {
				t.Errorf("%s: sent: %v, with the token: %v, want %v", request, sent, had, want)
			}
		}
	}
}
