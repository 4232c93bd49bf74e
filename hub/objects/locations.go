package objects

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"lighter/format/chunk"
	"lighter/format/index"
)

// ReadLocations reads the locations of a tree, and verifies their digest. extents is the number of
// the tree's extents, or -1 if it is not known. The error wraps ErrNotFound if the locations do not
// exist.
func (s *Store) ReadLocations(ctx context.Context, id, tree chunk.ID, extents int64) (*index.Locations, error) {
	plain, err := s.OpenPlain(ctx, LocationsKey(id))
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	b, err := io.ReadAll(plain)
	if err != nil {
		return nil, err
	}
	if got := chunk.Sum(b); got != id {
		return nil, fmt.Errorf("locations %s: the digest of their bytes is %s", id.Short(), got.Short())
	}
	return index.OpenLocations(bytes.NewReader(b), int64(len(b)), tree, extents)
}
