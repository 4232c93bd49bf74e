package catalog

import (
	"context"

	"lighter/hub/catalog/database"
)

// Wishlist is what the catalog has of a list of images of other registries.
type Wishlist struct {
	Name       string
	Definition string // JSON; empty: the hub's configuration has the list
	Result     []byte // JSON: what the hub has made of the list, when it read it last; empty: it was not read
}

// Wishlists has the lists that users have added, and the last result of each list. It is safe for
// concurrent use.
type Wishlists struct{ db *database.DB }

func (w *Wishlist) fields() []any { return []any{&w.Name, &w.Definition, &w.Result} }

// All returns all lists, sorted by name.
func (w *Wishlists) All(ctx context.Context) ([]Wishlist, error) {
	return database.List(ctx, w.db.Read, (*Wishlist).fields,
		`SELECT name, definition, result FROM wishlists ORDER BY name`)
}

// Get returns a list, or ErrNotFound.
func (w *Wishlists) Get(ctx context.Context, name string) (Wishlist, error) {
	return database.Get(ctx, w.db.Read, (*Wishlist).fields,
		`SELECT name, definition, result FROM wishlists WHERE name = ?`, name)
}

// Cache returns the last contents of a list's URLs, or nothing.
func (w *Wishlists) Cache(ctx context.Context, name string) ([]byte, error) {
	all, err := database.List(ctx, w.db.Read, database.Value[[]byte], `SELECT cache FROM wishlists WHERE name = ?`, name)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0], nil
}

// Define adds a list, or gives it another definition.
func (w *Wishlists) Define(ctx context.Context, name, definition string) error {
	return w.db.Exec(ctx, "define list "+name, `INSERT INTO wishlists (name, definition, result, cache)
		VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET definition = excluded.definition`,
		name, definition, []byte{}, []byte{})
}

// Done records the result of a list, and the contents of its URLs unless they are nil. It adds the
// list if the hub's configuration has it.
func (w *Wishlists) Done(ctx context.Context, name string, isConfigured bool, result, cache []byte) error {
	return w.db.Update(ctx, "note the result of list "+name, func(tx database.Session) error {
		if isConfigured {
			if err := tx.Exec(ctx, `INSERT INTO wishlists (name, definition, result, cache) VALUES (?, '', ?, ?)
				ON CONFLICT (name) DO NOTHING`, name, []byte{}, []byte{}); err != nil {
				return err
			}
		}
		if cache == nil {
			return tx.Exec(ctx, `UPDATE wishlists SET result = ? WHERE name = ?`, result, name)
		}
		return tx.Exec(ctx, `UPDATE wishlists SET result = ?, cache = ? WHERE name = ?`, result, cache, name)
	})
}

// Remove removes a list.
func (w *Wishlists) Remove(ctx context.Context, name string) error {
	return w.db.Exec(ctx, "remove list "+name, `DELETE FROM wishlists WHERE name = ?`, name)
}
