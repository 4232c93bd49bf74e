package catalog

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"slices"
	"strings"

	"lighter/format/chunk"
	"lighter/format/index"
)

// newStatement returns the statement of a row.
func newStatement(chain string, tree chunk.ID, signatures []byte) *index.Statement {
	s := &index.Statement{Chain: chain, Tree: tree, Format: index.Format}
	for signature := range slices.Chunk(signatures, ed25519.SignatureSize) {
		if s.Signature == nil {
			s.Signature = signature
			continue
		}
		s.Further = append(s.Further, signature)
	}
	return s
}

// signatures returns the signatures of a statement as they are stored.
func signatures(s *index.Statement) []byte {
	return append(slices.Clip(s.Signature), bytes.Join(s.Further, nil)...)
}

// ErrOtherKeys means that another process of the hub signs with other keys.
var ErrOtherKeys = errors.New("the statements are signed with keys that this process does not have: " +
	"copy hub.key of another process; if no process has it any more, delete the row keys of the table meta")

// Resign signs all statements again if they were signed with other keys than these. If several
// processes may use the catalog and none of these keys has signed before, the error is
// ErrOtherKeys.
func (c *Catalog) Resign(ctx context.Context, keys []ed25519.PrivateKey) error {
	var public []string
	for _, key := range keys {
		public = append(public, index.FormatKey(key.Public().(ed25519.PublicKey)))
	}
	text := strings.Join(public, " ")
	return c.update(ctx, "sign the statements again", func(tx session) error {
		signedBy, err := get(ctx, tx, value[string], `SELECT value FROM meta WHERE name = 'keys'`)
		if err != nil && !errors.Is(err, ErrNotFound) || signedBy == text {
			return err
		}
		isOurs := func(key string) bool { return slices.Contains(public, key) }
		if tx.dialect == postgresDialect && signedBy != "" && !slices.ContainsFunc(strings.Fields(signedBy), isOurs) {
			return ErrOtherKeys
		}
		if err := resign(ctx, tx, keys); err != nil {
			return err
		}
		return exec(ctx, tx, `INSERT INTO meta (name, value) VALUES ('keys', ?)
			ON CONFLICT (name) DO UPDATE SET value = excluded.value`, text)
	})
}

func resign(ctx context.Context, tx session, keys []ed25519.PrivateKey) error {
	trees, err := mapOf(ctx, tx, keyValue[string, chunk.ID],
		`SELECT chain, tree FROM statements WHERE format = ?`, index.Format)
	if err != nil {
		return err
	}
	for chain, tree := range trees {
		s := index.SignAll(keys, chain, tree)
		if err := exec(ctx, tx, `UPDATE statements SET signature = ? WHERE chain = ? AND format = ?`,
			signatures(&s), s.Chain, s.Format); err != nil {
			return err
		}
	}
	return nil
}
