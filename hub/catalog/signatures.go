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
	"lighter/hub/catalog/database"
)

// newStatement returns the statement of a row of table statements.
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

// signatures returns the signatures of a statement in their stored form: one after the other.
func signatures(s *index.Statement) []byte {
	return append(slices.Clip(s.Signature), bytes.Join(s.Further, nil)...)
}

// ErrOtherKeys means that a hub was started with keys of which none has signed the hub's
// statements.
var ErrOtherKeys = errors.New("the hub has signed with other keys")

// HasKeys reports whether the hub has keys: it was started with some, or has signed a statement.
func (c *Catalog) HasKeys(ctx context.Context) (bool, error) {
	return database.Get(ctx, c.db.Read, database.Value[bool], `SELECT EXISTS (SELECT 1 FROM meta WHERE name = 'keys')
		OR EXISTS (SELECT 1 FROM statements)`)
}

// ForgetKeys makes the catalog accept any keys at the next start of the hub.
func (c *Catalog) ForgetKeys(ctx context.Context) error {
	return c.db.Update(ctx, "forget the keys that have signed", func(tx database.Session) error {
		return tx.Exec(ctx, `DELETE FROM meta WHERE name = 'keys'`)
	})
}

// Resign signs all statements of the current format again, unless they were signed last by these
// keys in this order. If other keys signed them last, and those have none of the given keys, the
// error is ErrOtherKeys.
func (c *Catalog) Resign(ctx context.Context, keys []ed25519.PrivateKey) error {
	var public []string
	for _, key := range keys {
		public = append(public, index.FormatKey(key.Public().(ed25519.PublicKey)))
	}
	text := strings.Join(public, " ")
	return c.db.Update(ctx, "sign the statements again", func(tx database.Session) error {
		// The SQL statement locks the row, also a row that it has just inserted. So processes that
		// start together wait for each other.
		signedBy, err := database.Get(ctx, tx, database.Value[string],
			`INSERT INTO meta (name, value) VALUES ('keys', '')
			ON CONFLICT (name) DO UPDATE SET value = meta.value RETURNING value`)
		if err != nil || signedBy == text {
			return err
		}
		isOurs := func(key string) bool { return slices.Contains(public, key) }
		if signedBy != "" && !slices.ContainsFunc(strings.Fields(signedBy), isOurs) {
			return ErrOtherKeys
		}
		if err := resign(ctx, tx, keys); err != nil {
			return err
		}
		return tx.Exec(ctx, `UPDATE meta SET value = ? WHERE name = 'keys'`, text)
	})
}

// resign signs all statements with these keys.
func resign(ctx context.Context, tx database.Session, keys []ed25519.PrivateKey) error {
	trees, err := database.Map(ctx, tx, database.KeyValue[string, chunk.ID],
		`SELECT chain, tree FROM statements WHERE format = ?`, index.Format)
	if err != nil {
		return err
	}
	for chain, tree := range trees {
		s := index.SignAll(keys, chain, tree)
		if err := tx.Exec(ctx, `UPDATE statements SET signature = ? WHERE chain = ? AND format = ?`,
			signatures(&s), s.Chain, s.Format); err != nil {
			return err
		}
	}
	return nil
}
