package hub_test

import (
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/format/index"
	"lighter/hub"
	"lighter/hub/catalog"
	"lighter/hub/rootdir"
	"lighter/wire"
	"lighter/wire/client"
)

// signers returns which of the keys have signed the statement about a chain.
func signers(t *testing.T, client *client.Client, chain string, keys []string) (all []string) {
	t.Helper()
	tree, err := client.Tree(t.Context(), chain)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Chain(t.Context(), chain)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range keys {
		key, err := index.ParseKey(text)
		if err != nil {
			t.Fatal(err)
		}
		one := []ed25519.PublicKey{key}
		signed := tree.Verify(chain, one) == nil
		if answer.Statement == nil || answer.Statement.Verify(chain, one) == nil != signed {
			t.Errorf("statements of trees and chains are signed by different keys: %+v, %+v", tree, answer.Statement)
		}
		if signed {
			all = append(all, text)
		}
	}
	return all
}

// While a new key replaces an old one, each start of the hub signs all statements with the keys
// that the hub has then.
func TestKeyRotation(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	before := h.pushReady("a:1", image(lowerTar)).Chain
	root := h.config.Root
	keys, err := hub.Keys(root)
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys: %q, %v, want one", keys, err)
	}
	added, err := hub.AddKey(root)
	if err != nil {
		t.Fatal(err)
	}
	if keys = append(keys, added); !slices.Equal(signers(t, h.client, before, keys), keys[:1]) {
		t.Error("the hub signs with a key that was added after its start")
	}
	for step, want := range [][]string{keys, keys[1:]} {
		h = h.restart()
		name := "b:" + string(rune('1'+step))
		h.push(name, image(lowerTar, upperTar))
		for _, chain := range []string{before, h.ready(name).Chain} {
			if got := signers(t, h.client, chain, keys); !slices.Equal(got, want) {
				t.Errorf("step %d: chain %s is signed by %q, want %q", step, chain, got, want)
			}
		}
		found, err := h.client.Inspect(t.Context(), "a:1")
		if err != nil || len(found) != 1 || !slices.Equal(found[0].SignedBy, want) {
			t.Errorf("step %d: inspect answers %+v (%v), want signatures by %q", step, found, err, want)
		}
		served, err := h.client.Keys(t.Context())
		if err != nil || !slices.Equal(text(served), want) {
			t.Errorf("step %d: GET /key answers %q (%v), want %q", step, text(served), err, want)
		}
		if problems := h.problems("a:1"); problems != "" {
			t.Errorf("step %d: verify finds %q", step, problems)
		}
		if step == 0 {
			if err := hub.RemoveKey(root, keys[0]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := hub.RemoveKey(root, keys[1]); err == nil || !strings.Contains(err.Error(), "only key") {
		t.Errorf("remove the only key: %v, want an error", err)
	}
	if err := hub.RemoveKey(root, keys[0]); err == nil || !strings.Contains(err.Error(), "has no key") {
		t.Errorf("remove a key twice: %v, want an error", err)
	}
}

// A hub does not start with the key of another hub, unless an administrator requests it (lighter
// hub key use). When its own key is back, the hub signs as before.
func TestKeyOfAnotherHubIsRefused(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.push("a:1", image(lowerTar))
	chain := h.ready("a:1").Chain
	h.stop()
	path := rootdir.Key(h.config.Root)
	ours, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, err := hub.Keys(h.config.Root)
	if err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	added, err := hub.AddKey(other)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile(rootdir.Key(other))
	if err != nil {
		t.Fatal(err)
	}
	write := func(keys []byte) {
		t.Helper()
		if err := os.WriteFile(path, keys, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all := append(before, added)
	write(theirs)
	for range 2 { // a refused start changes nothing
		if _, err := hub.Open(t.Context(), h.config, h.Log()); !errors.Is(err, catalog.ErrOtherKeys) ||
			!strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "lighter hub key use") {
			t.Errorf("open with the key of another hub: %v, want an error that says what to do", err)
		}
	}
	write(ours)
	h = h.restart()
	if got := signers(t, h.client, chain, all); !slices.Equal(got, before) {
		t.Errorf("with its own key again, the hub signs with %q, want %q", got, before)
	}
	write(theirs)
	if err := hub.UseKeys(t.Context(), h.config, wire.DefaultDomain); err != nil {
		t.Fatal(err)
	}
	h = h.restart()
	if got := signers(t, h.client, chain, all); !slices.Equal(got, []string{added}) {
		t.Errorf("after lighter hub key use, the hub signs with %q, want %q", got, added)
	}
}

func text(keys []ed25519.PublicKey) (all []string) {
	for _, key := range keys {
		all = append(all, index.FormatKey(key))
	}
	return all
}

// After a key is added, the next run of a mirror copies the signatures of both keys. The mirror
// serves both keys only if both were given to it.
func TestMirrorOfTwoKeys(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	chain := h.pushReady("a:1", image(lowerTar)).Chain
	dir := t.TempDir()
	h.mirror(dir)
	if _, err := hub.AddKey(h.config.Root); err != nil {
		t.Fatal(err)
	}
	h = h.restart()
	keys, err := hub.Keys(h.config.Root)
	if err != nil {
		t.Fatal(err)
	}
	var given []ed25519.PublicKey
	for _, key := range keys {
		parsed, err := index.ParseKey(key)
		if err != nil {
			t.Fatal(err)
		}
		given = append(given, parsed)
	}
	mirror := serveFiles(t, dir)
	h.mirror(dir)
	if served, err := mirror.Keys(t.Context()); err != nil || !slices.Equal(text(served), keys[:1]) {
		t.Errorf("a mirror without given keys serves the keys %q, %v, want %q", text(served), err, keys[:1])
	}
	again := mirrorOf(t, h.client, dir, given, silent)
	if _, err := again.Copy(t.Context(), []string{"a:1"}); err != nil {
		t.Fatal(err)
	}
	if got := signers(t, mirror, chain, keys); len(keys) != 2 || !slices.Equal(got, keys) {
		t.Errorf("the mirror has the signatures of %q, want %q", got, keys)
	}
	if served, err := mirror.Keys(t.Context()); err != nil || !slices.Equal(text(served), keys) {
		t.Errorf("the mirror has the keys %q (%v), want %q", text(served), err, keys)
	}
}

func TestKeyFileIsChecked(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	var all []string
	for n := range index.MaxKeys {
		key, err := hub.AddKey(root)
		if all = append(all, key); err != nil {
			t.Fatalf("key %d: %v", n, err)
		}
	}
	if got, err := hub.Keys(root); err != nil || !slices.Equal(got, all) {
		t.Errorf("keys %q (%v), want %q", got, err, all)
	}
	if _, err := hub.AddKey(root); err == nil {
		t.Error("more keys than the maximum were added")
	}
	path := rootdir.Key(root)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for what, bad := range map[string]string{"empty": "", "no PEM": "x\n",
		"something behind the keys": string(good) + "x\n", "cut": string(good[:len(good)-10])} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := hub.AddKey(root); err == nil {
			t.Errorf("%s: a key was added, want an error", what)
		}
	}
	if left, err := filepath.Glob(path + "-*"); err != nil || len(left) > 0 {
		t.Errorf("temporary key files left: %q, %v, want none", left, err)
	}
}
