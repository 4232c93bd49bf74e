package direct

import (
	"context"
	"fmt"

	"lighter/format/layer"
	"lighter/format/layer/survey"
	"lighter/format/tree"
	"lighter/store"
	"lighter/store/repository"
)

// maxWhole bounds the layers that are read as a whole, in bytes. SOCI's tools make no zTOC of
// layers of less than 10 MiB.
const maxWhole = 64 << 20

// inflated bounds the tar stream of a layer that is read as a whole, in bytes: for bombs. Layers
// seldom shrink to less than a tenth. size is that of the blob.
func inflated(size int64) tree.Limits {
	return tree.Limits{Entries: limits.Entries, Bytes: 1<<30 + 256*size}
}

// readWhole reads layer i of an image, a small one, as a whole, and makes its table.
func (m *Images) readWhole(ctx context.Context, from *repository.Repository, im *read, i int) (*mapped, error) {
	if d := im.layers[i]; d.Size > maxWhole {
		return nil, notDirect{fmt.Errorf("layer %s has no zTOC and %d bytes: layers of up to %d bytes are read as a "+
			"whole", d.Digest, d.Size, maxWhole)}
	}
	return m.surveyLayer(ctx, from, im, i)
}

// surveyLayer reads layer i of an image as a whole, and makes its table. Unlike a zTOC, such a
// table is that of the layer's diffID. If im.stores, the chunks of a small layer are stored in the
// cache.
func (m *Images) surveyLayer(ctx context.Context, from *repository.Repository, im *read, i int) (*mapped, error) {
	d, diffID := im.layers[i], im.diffIDs[i]
	pack, err := packOf(d)
	if err != nil {
		return nil, notDirect{err}
	}
	var all tree.Entries
	var s *survey.Survey
	chunks := seen{to: m.batches}
	if im.stores && d.Size <= maxWhole {
		chunks.left = maxSeen
	}
	err = from.Whole(ctx, d, func(a store.Answer) (err error) {
		all = nil
		// Chunks may be stored before the layer's digests were compared, even if the registry has
		// sent another layer. That is harmless: a survey has no derived IDs, so each chunk's ID is
		// the digest of the bytes that are stored.
		s, err = survey.Read(a.Body, inflated(d.Size), func(e *tree.Entry) error {
			all = append(all, e)
			return nil
		}, chunks.add)
		if err != nil {
			err = repository.Judge(a.Body, notDirect{fmt.Errorf("layer %s: %w", d.Digest, err)})
		}
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case s.Blob != pack || "sha256:"+s.DiffID.String() != diffID.String():
		return nil, notDirect{fmt.Errorf("layer %s has the diffID sha256:%s: the config says %s", d.Digest, s.DiffID,
			diffID)}
	}
	chunks.flush()
	l := &layer.Layer{Table: s.Table, Units: s.Units, Source: all.Source}
	return &mapped{Layer: l, whole: true}, nil
}
