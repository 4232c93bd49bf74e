package mount

import (
	"context"
	"encoding/binary"

	"lighter/format/chunk"
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
	// Eight bytes of an ID will do for counting.
	seen := map[uint64]struct{}{}
	err = t.Chunks(ctx, tree, func(ref chunk.Ref) {
		key := binary.BigEndian.Uint64(ref.ID[:])
		if _, again := seen[key]; again {
			return
		}
		seen[key] = struct{}{}
		c.Chunks++
		c.Bytes += int64(ref.Length)
		if has(ref.ID) {
			c.ChunksHere++
			c.BytesHere += int64(ref.Length)
		}
	})
	return c, err
}
