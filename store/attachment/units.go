package attachment

import (
	"context"
	"fmt"

	lru "github.com/hashicorp/golang-lru/v2"

	"lighter/format/chunk"
	"lighter/format/layer"
)

// decodedUnits is how many decoded units are kept, of layer.MaxPlain bytes at most.
const decodedUnits = 8

// units reads chunks from the layers of an image. It keeps the last decoded units, because the next
// chunk is often in one of them. It is for one goroutine.
type units struct {
	work *work
	tree *openedTree
	last *lru.Cache[unitOf, *layer.Batch]
}

type unitOf struct {
	layer int
	n     uint32
}

func newUnits(w *work, t *openedTree) *units {
	last, _ := lru.New[unitOf, *layer.Batch](decodedUnits) // it fails for sizes below 1
	return &units{w, t, last}
}

// chunk returns the verified plain bytes of a chunk, which the caller must not change.
func (s *units) chunk(ctx context.Context, _ int64, ref chunk.Ref) ([]byte, error) {
	for i, l := range s.tree.layers {
		n, found := l.places.Units[ref.ID]
		if !found {
			continue
		}
		if batch, ok := s.last.Get(unitOf{i, n}); ok {
			return batch.Lookup(ref.ID)
		}
		u, err := l.table.Unit(n)
		if err != nil {
			return nil, err
		}
		batch, err := s.work.readUnit(ctx, s.work.Layers[i], u)
		if err != nil {
			return nil, err
		}
		s.last.Add(unitOf{i, n}, batch)
		return batch.Lookup(ref.ID)
	}
	return nil, fmt.Errorf("chunk %s: no layer has it: %w", ref.ID.Short(), chunk.ErrNotFound)
}
