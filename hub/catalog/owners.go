package catalog

import (
	"context"
	"database/sql"
)

// Owners of blobs and chunks. Images count from 1.
const (
	noImage       = 0
	severalImages = -1
)

type sharedBlob struct {
	size   int64
	diffID string
	images []int32
}

// imageBlobs returns the digests of the ready images, and for each blob which of them have it, by
// their position in digests + 1.
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

// ownerOf returns the image if all are the same, or severalImages.
func ownerOf(images []int32) int32 {
	for _, image := range images {
		if image != images[0] {
			return severalImages
		}
	}
	return images[0]
}

// chunkOwners returns, by a chunk's number, the only image that has it, noImage or severalImages.
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
				if owners[n] == noImage {
					owners[n] = owner
				} else if owners[n] != owner {
					owners[n] = severalImages
				}
			}
		})
	}, `SELECT diff_id, chunks FROM layers`)
	return owners, err
}
