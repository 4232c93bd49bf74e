package chain

import (
	"crypto/ed25519"
	"os"
	"strings"
	"testing"
)

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
	h.key = ed25519.NewKeyFromSeed([]byte(strings.Repeat("y", 32))) // the hub changes its key
	again, err := NewKeys(root, nil, h)
	if err != nil {
		t.Fatal(err)
	}
	got, err := again.Get(t.Context())
	if err != nil || !got[0].Equal(key.Public()) {
		t.Errorf("the pinned key changed: %v, %v", got, err)
	}
	if info, err := os.Stat(k.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the pinned keys' file: %v, %v", info, err)
	}
	h.local = false
	if _, err := NewKeys(t.TempDir(), nil, h); err == nil {
		t.Error("a remote hub's key was trusted at first sight")
	}
	if _, err := NewKeys(t.TempDir(), []string{"ed25519:zz"}, h); err == nil {
		t.Error("a key that is none was accepted")
	}
}
