package catalog

import (
	"context"
	"fmt"

	"lighter/hub/catalog/database"
	"lighter/hub/catalog/numberset"
	"lighter/wire"
)

// The owner of a blob or a chunk is the only image that has it, as a number from 1 (imageBlobs), or
// one of these constants.
const (
	noImage       = 0
	severalImages = -1
)

// sharedBlob is a blob with the images that have it.
type sharedBlob struct {
	size   int64
	diffID string // of a layer
	images []int32
}

// imageBlobs returns the digests of the ready images, and their blobs by digest. The number of an
// image is its position in digests, counted from 1.
func imageBlobs(ctx context.Context, in database.Session) ([]string, map[string]*sharedBlob, error) {
	var digests []string
	numbers := map[string]int32{}
	blobs := map[string]*sharedBlob{}
	type row struct {
		image, digest, diffID string
		size                  int64
	}
	for r, err := range database.Rows(ctx, in, func(r *row) []any {
		return []any{&r.image, &r.digest, &r.size, &r.diffID}
	}, `SELECT i.digest, b.digest, b.size, COALESCE(c.diff_id, '') FROM image_blobs b JOIN images i ON i.n = b.image
			LEFT JOIN chains c ON c.chain = b.chain ORDER BY i.n`) {
		if err != nil {
			return nil, nil, err
		}
		if numbers[r.image] == 0 {
			digests = append(digests, r.image)
			numbers[r.image] = int32(len(digests))
		}
		b := blobs[r.digest]
		if b == nil {
			b = &sharedBlob{size: r.size, diffID: r.diffID}
			blobs[r.digest] = b
		}
		b.images = append(b.images, numbers[r.image])
	}
	return digests, blobs, nil
}

// ownerOf returns the owner of a blob or a chunk that these images have.
func ownerOf(images []int32) int32 {
	for _, image := range images {
		if image != images[0] {
			return severalImages
		}
	}
	return images[0]
}

// chunkOwners returns the owner of each chunk, by the chunk's number. layers has the images of each
// layer.
func chunkOwners(
	ctx context.Context, in database.Session, layers map[string][]int32,
) (owners numberset.Values, err error) {
	last, err := database.Get(ctx, in, database.Value[int64], `SELECT COALESCE(MAX(n), 0) FROM chunks`)
	if err != nil {
		return owners, err
	}
	for l, err := range layersChunks(ctx, in) {
		if err != nil {
			return owners, err
		}
		images := layers[l.diffID]
		if len(images) == 0 {
			continue
		}
		owner := ownerOf(images)
		if err := numberset.Decode(l.chunks, func(first, end int64) error {
			owners.Update(first, min(end, last+1), func(other int32) int32 {
				if other == noImage || other == owner {
					return owner
				}
				return severalImages
			})
			return nil
		}); err != nil {
			return owners, fmt.Errorf("layer %s: %w", wire.ShortDigest(l.diffID), err)
		}
	}
	return owners, nil
}
