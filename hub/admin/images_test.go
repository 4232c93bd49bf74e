package admin

import (
	"bytes"
	"crypto/ed25519"
	"slices"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
)

// Only the keys that have signed count, whatever keys the process has: another process of the hub
// may have signed with others.
func TestSigners(t *testing.T) {
	var private []ed25519.PrivateKey
	var public []ed25519.PublicKey
	var texts []string
	for i := range byte(3) {
		key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{i}, ed25519.SeedSize))
		private, public = append(private, key), append(public, key.Public().(ed25519.PublicKey))
		texts = append(texts, index.FormatKey(public[i]))
	}
	s := index.SignAll(private[1:], "sha256:1", chunk.ID{1})
	for _, c := range []struct {
		keys []ed25519.PublicKey
		want []string
	}{{public, texts[1:]}, {public[:2], texts[1:2]}, {public[:1], nil}} {
		if got := signers(&s, c.keys); !slices.Equal(got, c.want) {
			t.Errorf("of %d keys, %q have signed, want %q", len(c.keys), got, c.want)
		}
	}
}
