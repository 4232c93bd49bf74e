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

// Resign signs all statements of the current format again, unless all were signed last by these
// keys in this order. If other keys signed them last, and those have none of the given keys, the
// error is ErrOtherKeys. From now on, publications of this process have statements of these keys.
func (c *Catalog) Resign(ctx context.Context, keys []ed25519.PrivateKey) error {
	var public []string
	for _, key := range keys {
		public = append(public, index.FormatKey(key.Public().(ed25519.PublicKey)))
	}
	text := strings.Join(public, " ")
	err := c.db.Update(ctx, "sign the statements again", func(tx database.Session) error {
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
	if err == nil {
		c.keys.Store(&text)
	}
	return err
}

// furtherMark ends the list of the keys that have signed last, if another process of the hub has
// published with other keys since.
const furtherMark = " +"

// noteKeys notes, before a publication, that it has a statement of other keys than those that have
// signed last: another process has started with new keys meanwhile. So the next process that starts
// signs all again.
func (c *Catalog) noteKeys(ctx context.Context) error {
	last, others, err := c.otherKeys(ctx, c.db.Read, "")
	if err != nil || !others {
		return err
	}
	return c.db.Update(ctx, "note the keys of a publication", func(tx database.Session) error {
		return tx.Exec(ctx, `UPDATE meta SET value = ? WHERE name = 'keys' AND value = ?`, last+furtherMark, last)
	})
}

// holdKeys keeps the keys that have signed last until the publication ends. The error is
// errOtherKeys if noteKeys has to be called again. Publications do not wait for each other, but for
// a process that signs. So holdKeys must not change the row: two of them would wait for each other.
func (c *Catalog) holdKeys(ctx context.Context, tx database.Session, _ *Publication) error {
	_, others, err := c.otherKeys(ctx, tx, tx.Share)
	if err == nil && others {
		err = errOtherKeys
	}
	return err
}

var errOtherKeys = errors.New("another process of the hub has signed with other keys meanwhile")

// otherKeys returns the keys that have signed last, and whether these lack this process's keys and
// the mark. lock is the end of the query.
func (c *Catalog) otherKeys(
	ctx context.Context, s database.Session, lock string,
) (last string, others bool, err error) {
	keys := c.keys.Load()
	if keys == nil {
		return "", false, nil
	}
	last, err = database.Get(ctx, s, database.Value[string], `SELECT value FROM meta WHERE name = 'keys'`+lock)
	if errors.Is(err, ErrNotFound) { // ForgetKeys: the next start signs all again
		return "", false, nil
	}
	return last, last != *keys && !strings.HasSuffix(last, furtherMark), err
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
