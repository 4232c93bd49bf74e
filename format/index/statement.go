package index

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"lighter/format/chunk"
)

// A Statement is a hub's word that a chain's merged view is a tree. It is the
// only link in the chain of trust that no digest makes, so it is signed.
//
// While a hub's key is replaced, the old key and the new one both sign. Further
// signatures are in a field of their own, so that readers of one signature find
// the first key's where it always was.
type Statement struct {
	Chain     string   `json:"chain"`     // the OCI chainID, "sha256:…"
	Tree      chunk.ID `json:"tree"`      // the tree ID
	Format    int      `json:"format"`    // the index's format number
	Signature []byte   `json:"signature"` // Ed25519, of what message returns; by the hub's first key
	// Further are the signatures of the hub's other keys, MaxKeys-1 at most.
	Further [][]byte `json:"further,omitempty"`
}

// MaxKeys bounds the keys that a hub signs with at a time.
const MaxKeys = 4

// NewerFormatError says that a statement is about an index of a format that a
// later version has introduced. Such a statement may be well signed.
type NewerFormatError struct{ Format int }

func (e *NewerFormatError) Error() string {
	return fmt.Sprintf("the statement is about an index of format %d, this version reads formats up to %d", e.Format, Format)
}

// message is what is signed. The first line keeps the signature from being
// taken for one of something else.
func (s *Statement) message() []byte {
	return fmt.Appendf(nil, "lighter statement 1\nchain %s\ntree %s\nformat %d\n", s.Chain, s.Tree, s.Format)
}

// Sign makes the statement that chain is tree, in this package's format, signed
// by one key.
func Sign(key ed25519.PrivateKey, chain string, tree chunk.ID) Statement {
	s := Statement{Chain: chain, Tree: tree, Format: Format}
	s.Signature = ed25519.Sign(key, s.message())
	return s
}

// SignAll makes the statement that chain is tree, in this package's format, signed
// by each of the keys, of which there are 1 to MaxKeys.
func SignAll(keys []ed25519.PrivateKey, chain string, tree chunk.ID) Statement {
	s := Sign(keys[0], chain, tree)
	for _, key := range keys[1:] {
		s.Further = append(s.Further, ed25519.Sign(key, s.message()))
	}
	return s
}

// Verify returns an error unless the statement is about chain, in a format that
// this package reads, and signed by one of the keys. The error is a
// *NewerFormatError if the format is a later version's.
func (s *Statement) Verify(chain string, keys []ed25519.PublicKey) error {
	switch {
	case s.Chain != chain:
		return fmt.Errorf("the statement is about chain %q, not %q", s.Chain, chain)
	case s.Format > Format:
		return &NewerFormatError{s.Format}
	case s.Format < 1:
		return fmt.Errorf("the statement is about an index of format %d, which is none", s.Format)
	case len(s.Further) >= MaxKeys:
		return fmt.Errorf("the statement has %d signatures, more than %d", 1+len(s.Further), MaxKeys)
	}
	if !slices.ContainsFunc(keys, s.SignedBy) {
		return errors.New("the statement is not signed by a pinned key of the hub")
	}
	return nil
}

// SignedBy reports whether one of the signatures is the key's.
func (s *Statement) SignedBy(key ed25519.PublicKey) bool {
	if len(key) != ed25519.PublicKeySize {
		return false
	}
	message := s.message()
	signed := func(signature []byte) bool { return ed25519.Verify(key, message, signature) }
	return signed(s.Signature) || slices.ContainsFunc(s.Further, signed)
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
