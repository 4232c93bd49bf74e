package mount

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"

	"lighter/format/chunk"
	"lighter/format/index"
)

// Content is how much of a tree's data is on this machine, in distinct chunks and
// their plain bytes. Small files are in the tree's index, and not counted.
type Content struct {
	Chunks     int64 `json:"chunks"`
	Bytes      int64 `json:"bytes"`
	ChunksHere int64 `json:"chunksHere"`
	BytesHere  int64 `json:"bytesHere"`
}

// Content counts the chunks of a tree that is on this machine, and those that has
// knows. It reads the whole extent map.
func (t *Trees) Content(ctx context.Context, tree chunk.ID, has func(chunk.ID) bool) (c Content, err error) {
	file, err := os.Open(filepath.Join(t.dir(tree), "map"))
	if err != nil {
		return c, err
	}
	defer file.Close()
	extents, err := index.OpenMap(file, tree, index.NewPages(1)) // in order, and not to push out what readers need
	if err != nil {
		return c, err
	}
	// Eight bytes of an ID will do for counting.
	seen := map[uint64]struct{}{}
	for i := range extents.Extents {
		e, err := extents.Extent(i)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return c, err
		}
		key := binary.BigEndian.Uint64(e.ID[:])
		if _, again := seen[key]; again {
			continue
		}
		seen[key] = struct{}{}
		c.Chunks++
		c.Bytes += int64(e.Length)
		if has(e.ID) {
			c.ChunksHere++
			c.BytesHere += int64(e.Length)
		}
	}
	return c, nil
}
