package index

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"

	"lighter/format/chunk"
)

// An ImageStatement says which chain the layers of a manifest make, and from which repositories the
// hub knows the manifest. The hub signs it, because no digest covers the repositories.
type ImageStatement struct {
	Manifest string `json:"manifest"` // digest, "sha256:…"
	Chain    string `json:"chain"`    // the OCI chainID of all layers, "sha256:…"
	// Repositories are HOST[:PORT]/PATH, sorted, each once, at most MaxRepositories. A repository
	// of the hub's own registry may have no host. Such a repository matches no reference.
	Repositories []string `json:"repositories"`
	Signatures   [][]byte `json:"signatures"` // Ed25519, of message(); 1 to MaxKeys
}

// MaxRepositories limits the repositories of a statement.
const MaxRepositories = 1000

// message returns the signed bytes. Their first line tells them apart from other signed messages.
func (s *ImageStatement) message() []byte {
	b := fmt.Appendf(nil, "lighter image %d\nmanifest %s\nchain %s\n", StatementFormat, s.Manifest, s.Chain)
	for _, repository := range s.Repositories {
		b = fmt.Appendf(b, "repository %s\n", repository)
	}
	return b
}

// SignImage returns the statement for a manifest and the chain of all its layers, with the first
// MaxRepositories of the sorted repositories. It signs with all keys; keys must have 1 to MaxKeys
// elements.
func SignImage(keys []ed25519.PrivateKey, manifest, chain string, repositories []string) ImageStatement {
	sorted := slices.Compact(slices.Sorted(slices.Values(repositories)))
	s := ImageStatement{Manifest: manifest, Chain: chain, Repositories: sorted[:min(len(sorted), MaxRepositories)]}
	for _, key := range keys {
		s.Signatures = append(s.Signatures, ed25519.Sign(key, s.message()))
	}
	return s
}

// Verify returns an error unless the statement is about manifest, well-formed, and signed with one
// of the keys.
func (s *ImageStatement) Verify(manifest string, keys []ed25519.PublicKey) error {
	if s.Manifest != manifest {
		return fmt.Errorf("the image statement is about manifest %q, not %q", s.Manifest, manifest)
	}
	if !isDigest(s.Manifest) || !isDigest(s.Chain) {
		return fmt.Errorf("the image statement is about manifest %q and chain %q: want sha256 digests",
			s.Manifest, s.Chain)
	}
	if len(s.Repositories) > MaxRepositories {
		return fmt.Errorf("the image statement names %d repositories, the limit is %d",
			len(s.Repositories), MaxRepositories)
	}
	for i, repository := range s.Repositories {
		if repository == "" || strings.ContainsAny(repository, " \n") || i > 0 && repository <= s.Repositories[i-1] {
			return fmt.Errorf("the image statement names repository %q, which is malformed or out of order",
				repository)
		}
	}
	if len(s.Signatures) > MaxKeys {
		return fmt.Errorf("the image statement has %d signatures, the limit is %d", len(s.Signatures), MaxKeys)
	}
	signed := func(key ed25519.PublicKey) bool { return isSigned(s.message(), s.Signatures, key) }
	if !slices.ContainsFunc(keys, signed) {
		return errors.New("the image statement is not signed by a pinned key of the hub")
	}
	return nil
}

// Allows reports whether the statement names repository, which is HOST[:PORT]/PATH.
func (s *ImageStatement) Allows(repository string) bool {
	_, found := slices.BinarySearch(s.Repositories, repository)
	return found
}

func isDigest(text string) bool {
	hex, ok := strings.CutPrefix(text, "sha256:")
	_, err := chunk.ParseID(hex)
	return ok && err == nil
}
