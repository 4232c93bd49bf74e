package resolver

import (
	"crypto/ed25519"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"lighter/format/index"
	"lighter/store/origin"
	"lighter/wire/client"
)

// A key that was learned stays pinned when the hub has another key. No key is learned from a remote
// hub.
func TestKeysArePinned(t *testing.T) {
	root := t.TempDir()
	h := &fakeHub{key: key, local: true}
	k, err := NewKeys(root, nil, h)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.key = ed25519.NewKeyFromSeed([]byte(strings.Repeat("y", 32))) // the hub's key changes
	again, err := NewKeys(root, nil, h)
	if err != nil {
		t.Fatal(err)
	}
	got, err := again.Get(t.Context())
	if err != nil || !got[0].Equal(key.Public()) {
		t.Errorf("got keys %v, %v; want the key that was learned first", got, err)
	}
	if info, err := os.Stat(k.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of the pinned keys: got %v, %v; want mode 0600", info, err)
	}
	h.local = false
	if _, err := NewKeys(t.TempDir(), nil, h); err == nil {
		t.Error("learned a remote hub's key")
	}
	if _, err := NewKeys(t.TempDir(), []string{"ed25519:zz"}, h); err == nil {
		t.Error("accepted an invalid key")
	}
}

// With several hubs no key is learned, although each hub is on this machine: while one hub is down,
// another would decide which key counts.
func TestKeyIsNotLearnedFromOneOfSeveral(t *testing.T) {
	var hubs []client.Options
	for range 2 {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, index.FormatKey(key.Public().(ed25519.PublicKey))+"\n")
		}))
		defer server.Close()
		hubs = append(hubs, client.Options{URL: server.URL})
	}
	log := slog.New(slog.DiscardHandler)
	single, err := origin.New(log, hubs[0])
	if err != nil {
		t.Fatal(err)
	}
	if k, err := NewKeys(t.TempDir(), nil, single); err != nil {
		t.Error(err)
	} else if keys, err := k.Get(t.Context()); err != nil || len(keys) != 1 {
		t.Errorf("keys of a single hub: got %v, %v; want one key", keys, err)
	}
	root := t.TempDir()
	several, err := origin.New(log, hubs...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewKeys(root, nil, several); err == nil || !strings.Contains(err.Error(), "several hubs") ||
		!strings.Contains(err.Error(), "--hub-key") {
		t.Errorf("keys of several hubs: got error %v, want one about several hubs and --hub-key", err)
	}
	if _, err := several.Keys(t.Context()); err == nil {
		t.Error("learned the key of one of several hubs")
	}
	if _, err := NewKeys(root, []string{index.FormatKey(key.Public().(ed25519.PublicKey))}, several); err != nil {
		t.Errorf("several hubs and a pinned key: got %v, want no error", err)
	}
}
