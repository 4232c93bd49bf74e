package index

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"lighter/test/testkit/golden"
)

func digestOf(n int) string { return "sha256:" + id(n).String() }

// imageKeys returns n private keys and their public keys.
func imageKeys(n int) (signers []ed25519.PrivateKey, keys []ed25519.PublicKey) {
	for i := range n {
		key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{byte(i)}, ed25519.SeedSize))
		signers, keys = append(signers, key), append(keys, key.Public().(ed25519.PublicKey))
	}
	return signers, keys
}

func TestImageStatement(t *testing.T) {
	signers, keys := imageKeys(1)
	_, all := imageKeys(2)
	other := all[1]
	s := SignImage(signers, digestOf(1), digestOf(2), []string{"registry.test/b", "registry.test/a", "registry.test/b"})
	if err := s.Verify(digestOf(1), append([]ed25519.PublicKey{other}, keys...)); err != nil {
		t.Error(err)
	}
	if !s.Allows("registry.test/a") || s.Allows("registry.test/c") || s.Allows("registry.test") {
		t.Errorf("the statement allows repositories other than %q", s.Repositories)
	}
	encoded, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "image.golden", string(encoded)+"\n")

	changed := func(change func(s *ImageStatement)) ImageStatement {
		c := s
		c.Repositories = slices.Clone(s.Repositories)
		change(&c)
		return c
	}
	for name, c := range map[string]ImageStatement{
		"another chain":      changed(func(s *ImageStatement) { s.Chain = digestOf(3) }),
		"another repository": changed(func(s *ImageStatement) { s.Repositories[0] = "registry.test/0" }),
		"one repository more": changed(func(s *ImageStatement) {
			s.Repositories = append(s.Repositories, "registry.test/c")
		}),
		"one repository less": changed(func(s *ImageStatement) { s.Repositories = s.Repositories[:1] }),
		"two in one": changed(func(s *ImageStatement) {
			s.Repositories = []string{"registry.test/a\nrepository registry.test/b"}
		}),
		"another order":      changed(func(s *ImageStatement) { slices.Reverse(s.Repositories) }),
		"an invalid chain":   SignImage(signers, digestOf(1), "sha256:zz", nil),
		"another manifest":   SignImage(signers, digestOf(3), digestOf(2), nil),
		"a signed duplicate": {Manifest: digestOf(1), Chain: digestOf(2), Repositories: []string{"a/b", "a/b"}},
	} {
		if c.Signatures == nil {
			c.Signatures = [][]byte{ed25519.Sign(signers[0], c.message())}
		}
		if err := c.Verify(digestOf(1), keys); err == nil {
			t.Errorf("%s: accepted, want an error", name)
		}
	}
	for name, keys := range map[string][]ed25519.PublicKey{"another key": {other}, "no key": nil,
		"a short key": {other[:5]}} {
		if err := s.Verify(digestOf(1), keys); err == nil {
			t.Errorf("%s: accepted, want an error", name)
		}
	}
	var many []string
	for n := range MaxRepositories + 5 {
		many = append(many, fmt.Sprintf("registry.test/%04d", n))
	}
	long := SignImage(signers, digestOf(1), digestOf(2), many)
	if err := long.Verify(digestOf(1), keys); err != nil || len(long.Repositories) != MaxRepositories {
		t.Errorf("of too many repositories the statement names %d (%v), want %d",
			len(long.Repositories), err, MaxRepositories)
	}
}

// While a key is replaced, the statement is signed with both, and either suffices.
func TestImageStatementOfSeveralKeys(t *testing.T) {
	signers, keys := imageKeys(MaxKeys + 1)
	s := SignImage(signers[:MaxKeys], digestOf(1), digestOf(2), nil)
	for i, key := range keys {
		if err := s.Verify(digestOf(1), []ed25519.PublicKey{key}); (err == nil) != (i < MaxKeys) {
			t.Errorf("key %d: got %v, want no error: %t", i, err, i < MaxKeys)
		}
	}
	many := SignImage(signers, digestOf(1), digestOf(2), nil)
	if err := many.Verify(digestOf(1), keys); err == nil {
		t.Error("too many signatures are accepted")
	}
}

// A signature of a tree statement is not valid for an image statement, nor the other way round.
func TestStatementsAreNotMixedUp(t *testing.T) {
	signers, keys := imageKeys(1)
	tree := Sign(signers[0], digestOf(1), id(2))
	image := SignImage(signers, digestOf(1), digestOf(1), nil)
	forgedImage := image
	forgedImage.Signatures = [][]byte{tree.Signature}
	forgedTree := tree
	forgedTree.Signature = image.Signatures[0]
	if forgedImage.Verify(digestOf(1), keys) == nil || forgedTree.Verify(digestOf(1), keys) == nil {
		t.Error("a signature holds for the other kind of statement")
	}
}

// FuzzImageStatement verifies that only the signed image statement is accepted.
func FuzzImageStatement(f *testing.F) {
	signers, keys := imageKeys(1)
	signed := SignImage(signers, digestOf(1), digestOf(2), []string{"registry.test/a", "registry.test/b"})
	b, err := json.Marshal(signed)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, signed.Manifest)
	f.Add(bytes.ReplaceAll(b, []byte(`/a","`), []byte(`/a\nrepository `)), signed.Manifest)
	f.Fuzz(func(t *testing.T, b []byte, asked string) {
		var s ImageStatement
		if json.Unmarshal(b, &s) != nil || s.Verify(asked, keys) != nil {
			return
		}
		if asked != signed.Manifest || s.Chain != signed.Chain || !slices.Equal(s.Repositories, signed.Repositories) {
			t.Fatalf("%+v was accepted for %q", s, asked)
		}
	})
}
