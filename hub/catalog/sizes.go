package catalog

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
)

// Sizes say what only one image has. Images of the same digest count as one.
type Sizes struct {
	Chunks int64 // plain bytes of its chunks
	Stored int64 // stored bytes of its chunks and of its blobs in the registry
}

type sizesCache struct {
	mu      sync.Mutex // held while sizes are computed, so that many who ask cause one pass
	changes int64
	sizes   map[string]Sizes
}

// Sizes returns the sizes of all images that are ready, by digest. It passes
// over the chunks once and remembers the answer until an image comes or goes.
func (c *Catalog) Sizes(ctx context.Context) (map[string]Sizes, error) {
	c.sizes.mu.Lock()
	defer c.sizes.mu.Unlock()
	changes := c.changes.Load()
	if c.sizes.sizes != nil && c.sizes.changes == changes {
		return c.sizes.sizes, nil
	}
	sizes, err := c.computeSizes(ctx)
	if err != nil {
		return nil, fmt.Errorf("compute what each image has alone: %w", err)
	}
	c.sizes.sizes, c.sizes.changes = sizes, changes
	return sizes, nil
}

const (
	nobody   = 0
	severals = -1
)

func (c *Catalog) computeSizes(ctx context.Context) (map[string]Sizes, error) {
	digests, blobs, err := c.imageBlobs(ctx)
	if err != nil {
		return nil, err
	}
	sizes := make([]Sizes, len(digests)+1) // images count from 1
	layers := map[string][]int32{}         // diffID → images
	for _, b := range blobs {
		if owner := ownerOf(b.images); owner > 0 {
			sizes[owner].Stored += b.size
		}
		if b.diffID != "" {
			layers[b.diffID] = append(layers[b.diffID], b.images...)
		}
	}
	owners, err := c.chunkOwners(ctx, layers)
	if err != nil {
		return nil, err
	}
	err = each(ctx, c.read, func(rows *sql.Rows) error {
		var n, length, plain, stored int64
		if err := rows.Scan(&n, &length, &plain, &stored); err != nil {
			return err
		}
		if n < int64(len(owners)) && owners[n] > 0 {
			sizes[owners[n]].Chunks += length
			sizes[owners[n]].Stored += length * stored / max(plain, 1)
		}
		return nil
	}, `SELECT c.n, c.length, u.plain, u.stored FROM chunks c JOIN units u ON u.n = c.unit`)
	if err != nil {
		return nil, err
	}
	byDigest := make(map[string]Sizes, len(digests))
	for i, digest := range digests {
		byDigest[digest] = sizes[i+1]
	}
	return byDigest, nil
}

type sharedBlob struct {
	size   int64
	diffID string
	images []int32
}

// imageBlobs numbers the images that are ready, from 1, and says which of them
// need each blob.
func (c *Catalog) imageBlobs(ctx context.Context) ([]string, map[string]*sharedBlob, error) {
	var digests []string
	numbers := map[string]int32{}
	blobs := map[string]*sharedBlob{}
	err := each(ctx, c.read, func(rows *sql.Rows) error {
		var image, digest, diffID string
		var size int64
		if err := rows.Scan(&image, &digest, &size, &diffID); err != nil {
			return err
		}
		if numbers[image] == 0 {
			digests = append(digests, image)
			numbers[image] = int32(len(digests))
		}
		b := blobs[digest]
		if b == nil {
			b = &sharedBlob{size: size, diffID: diffID}
			blobs[digest] = b
		}
		b.images = append(b.images, numbers[image])
		return nil
	}, `SELECT i.digest, b.digest, b.size, COALESCE(c.diff_id, '') FROM image_blobs b JOIN images i ON i.n = b.image
		LEFT JOIN chains c ON c.chain = b.chain ORDER BY i.n`)
	return digests, blobs, err
}

// ownerOf returns the one image that images consists of, or severals.
func ownerOf(images []int32) int32 {
	for _, image := range images {
		if image != images[0] {
			return severals
		}
	}
	return images[0]
}

// chunkOwners says for each chunk's number which image alone has it.
func (c *Catalog) chunkOwners(ctx context.Context, layers map[string][]int32) ([]int32, error) {
	var last int64
	if err := c.read.QueryRowContext(ctx, `SELECT COALESCE(MAX(n), 0) FROM chunks`).Scan(&last); err != nil {
		return nil, err
	}
	owners := make([]int32, last+1)
	err := each(ctx, c.read, func(rows *sql.Rows) error {
		var diffID string
		var chunks []byte
		if err := rows.Scan(&diffID, &chunks); err != nil {
			return err
		}
		images := layers[diffID]
		if len(images) == 0 {
			return nil
		}
		owner := ownerOf(images)
		return decodeRuns(chunks, func(first, end int64) {
			for n := first; n < min(end, int64(len(owners))); n++ {
				if owners[n] == nobody {
					owners[n] = owner
				} else if owners[n] != owner {
					owners[n] = severals
				}
			}
		})
	}, `SELECT diff_id, chunks FROM layers`)
	return owners, err
}
