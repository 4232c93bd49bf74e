package catalog

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"lighter/format/chunk"
	"lighter/format/index"
)

// newStatement returns the statement of a row.
func newStatement(chain string, tree, signatures []byte) *index.Statement {
	s := &index.Statement{Chain: chain, Tree: chunk.ID(tree), Format: index.Format}
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

// Resign signs all statements again if they were signed with other keys than these.
func (c *Catalog) Resign(ctx context.Context, keys []ed25519.PrivateKey) error {
	var text []string
	for _, key := range keys {
		text = append(text, index.FormatKey(key.Public().(ed25519.PublicKey)))
	}
	return c.update(ctx, func(tx *sql.Tx) error {
		var signedBy string
		err := tx.QueryRowContext(ctx, `SELECT value FROM meta WHERE name = 'keys'`).Scan(&signedBy)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("read the catalog: %w", err)
		}
		if signedBy == strings.Join(text, " ") {
			return nil
		}
		if err := resign(ctx, tx, keys); err != nil {
			return fmt.Errorf("sign the statements again: %w", err)
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO meta (name, value) VALUES ('keys', ?) ON CONFLICT (name) DO UPDATE
			SET value = excluded.value`,
			strings.Join(text, " "))
		return err
	})
}

func resign(ctx context.Context, tx *sql.Tx, keys []ed25519.PrivateKey) error {
	var all []index.Statement
	err := each(ctx, tx, func(rows *sql.Rows) error {
		var chain string
		var tree []byte
		if err := rows.Scan(&chain, &tree); err != nil {
			return err
		}
		all = append(all, index.SignAll(keys, chain, chunk.ID(tree)))
		return nil
	}, `SELECT chain, tree FROM statements WHERE format = ?`, index.Format)
	if err != nil {
		return err
	}
	for _, s := range all {
		if _, err := tx.ExecContext(ctx, `UPDATE statements SET signature = ?
			WHERE chain = ? AND format = ?`, signatures(&s), s.Chain, s.Format); err != nil {
			return err
		}
	}
	return nil
}
