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

// A Statement says which tree is a chain's merged view. The hub signs it, because no digest links
// the two.
//
// While a hub's key is replaced, the statement is signed with the old key and the new one. The
// signatures of all keys but the first have a field of their own, so a program that knows only the
// field Signature still finds the first key's signature there.
type Statement struct {
	Chain     string   `json:"chain"`     // the OCI chainID, "sha256:…"
	Tree      chunk.ID `json:"tree"`      // the tree ID
	Format    int      `json:"format"`    // the index's format number
	Signature []byte   `json:"signature"` // Ed25519, of message(), with the hub's first key
	// Further are the signatures with the hub's other keys, MaxKeys-1 at most.
	Further [][]byte `json:"further,omitempty"`
}

// StatementFormat is the number of the format of signed messages: statements and image statements.
const StatementFormat = 1

// MaxKeys limits the keys that a hub signs with at a time.
const MaxKeys = 4

// NewerFormatError means that a statement is about an index of a later version's format. Its
// signature may be valid.
type NewerFormatError struct{ Format int }

func (e *NewerFormatError) Error() string {
	return fmt.Sprintf("the statement is about an index of format %d, this version reads formats up to %d", e.Format,
		Format)
}

// message returns the signed bytes. Their first line tells them apart from other signed messages.
func (s *Statement) message() []byte {
	return fmt.Appendf(nil, "lighter statement %d\nchain %s\ntree %s\nformat %d\n", StatementFormat, s.Chain, s.Tree,
		s.Format)
}

// Sign returns the statement that tree is the merged view of chain, in this package's format,
// signed with one key.
func Sign(key ed25519.PrivateKey, chain string, tree chunk.ID) Statement {
	s := Statement{Chain: chain, Tree: tree, Format: Format}
	s.Signature = ed25519.Sign(key, s.message())
	return s
}

// SignAll returns the statement that Sign returns, signed with several keys. keys must have 1 to
// MaxKeys elements.
func SignAll(keys []ed25519.PrivateKey, chain string, tree chunk.ID) Statement {
	s := Sign(keys[0], chain, tree)
	for _, key := range keys[1:] {
		s.Further = append(s.Further, ed25519.Sign(key, s.message()))
	}
	return s
}

// Verify returns an error unless the statement is about chain, in a format that this package reads,
// and signed with one of the keys. For a later version's format the error is a *NewerFormatError.
func (s *Statement) Verify(chain string, keys []ed25519.PublicKey) error {
	switch {
	case s.Chain != chain:
		return fmt.Errorf("the statement is about chain %q, not %q", s.Chain, chain)
	case s.Format > Format:
		return &NewerFormatError{s.Format}
	case s.Format < 1:
		return fmt.Errorf("the statement is about an index of format %d, which does not exist", s.Format)
	case len(s.Further) >= MaxKeys:
		return fmt.Errorf("the statement has %d signatures, more than %d", 1+len(s.Further), MaxKeys)
	}
	if !slices.ContainsFunc(keys, s.SignedBy) {
		return errors.New("the statement is not signed by a pinned key of the hub")
	}
	return nil
}

// SignedBy reports whether one of the signatures was made with key.
func (s *Statement) SignedBy(key ed25519.PublicKey) bool {
	return isSigned(s.message(), append([][]byte{s.Signature}, s.Further...), key)
}

// isSigned reports whether one of the signatures of a message was made with key.
func isSigned(message []byte, signatures [][]byte, key ed25519.PublicKey) bool {
	return len(key) == ed25519.PublicKeySize && slices.ContainsFunc(signatures, func(signature []byte) bool {
		return ed25519.Verify(key, message, signature)
	})
}

const keyPrefix = "ed25519:"

// FormatKey returns a public key in the form of configuration files and flags: "ed25519:" and
// base64 with padding (RFC 4648, section 4).
func FormatKey(key ed25519.PublicKey) string {
	return keyPrefix + base64.StdEncoding.EncodeToString(key)
}

// ParseKey parses what FormatKey returns, and accepts nothing else.
func ParseKey(s string) (ed25519.PublicKey, error) {
	b, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s, keyPrefix))
	if err != nil || len(b) != ed25519.PublicKeySize || FormatKey(b) != s {
		return nil, fmt.Errorf("%q is no public key: want %q and 32 bytes in base64", s, keyPrefix)
	}
	return b, nil
}
