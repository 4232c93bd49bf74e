package index

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"lighter/format/chunk"
)

// A Statement is a hub's word that a chain's merged view is a tree. It is the
// only link in the chain of trust that no digest makes, so it is signed.
type Statement struct {
	Chain     string   `json:"chain"`     // the OCI chainID, "sha256:…"
	Tree      chunk.ID `json:"tree"`      // the tree ID
	Format    int      `json:"format"`    // the index's format number
	Signature []byte   `json:"signature"` // Ed25519, of what message returns
}

// message is what is signed. The first line keeps the signature from being
// taken for one of something else.
func (s *Statement) message() []byte {
	return fmt.Appendf(nil, "lighter statement 1\nchain %s\ntree %s\nformat %d\n", s.Chain, s.Tree, s.Format)
}

// Sign makes the statement that chain is tree, in this package's format.
func Sign(key ed25519.PrivateKey, chain string, tree chunk.ID) Statement {
	s := Statement{Chain: chain, Tree: tree, Format: Format}
	s.Signature = ed25519.Sign(key, s.message())
	return s
}

// Verify returns an error unless the statement is about chain, in a format that
// this package reads, and signed by one of the keys.
func (s *Statement) Verify(chain string, keys []ed25519.PublicKey) error {
	if s.Chain != chain {
		return fmt.Errorf("the statement is about chain %q, not %q", s.Chain, chain)
	}
	if s.Format != Format {
		return fmt.Errorf("the statement is about an index of format %d, this version reads format %d", s.Format, Format)
	}
	for _, key := range keys {
		if len(key) == ed25519.PublicKeySize && ed25519.Verify(key, s.message(), s.Signature) {
			return nil
		}
	}
	return errors.New("the statement is not signed by a pinned key of the hub")
}

const keyPrefix = "ed25519:"

// FormatKey writes a public key as configuration files and flags hold it:
// "ed25519:" and base64 with padding (RFC 4648, section 4).
func FormatKey(key ed25519.PublicKey) string {
	return keyPrefix + base64.StdEncoding.EncodeToString(key)
}

// ParseKey reads what FormatKey wrote, and nothing else.
func ParseKey(s string) (ed25519.PublicKey, error) {
	b, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s, keyPrefix))
	if err != nil || len(b) != ed25519.PublicKeySize || FormatKey(b) != s {
		return nil, fmt.Errorf("%q is not a hub's key: want %q and 32 bytes in base64", s, keyPrefix)
	}
	return b, nil
}
