package direct

import (
	"context"
	"fmt"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

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

// readWhole reads a small layer as a whole, and makes its table.
func readWhole(
	ctx context.Context, from *repository.Repository, d v1.Descriptor, diffID digest.Digest,
) (*mapped, error) {
	if d.Size > maxWhole {
		return nil, notDirect{fmt.Errorf("layer %s has no zTOC and %d bytes: layers of up to %d bytes are read as a "+
			"whole", d.Digest, d.Size, maxWhole)}
	}
	return surveyLayer(ctx, from, d, diffID)
}

// surveyLayer reads a layer as a whole, and makes its table. Unlike a zTOC, such a table is that of
// the layer's diffID.
func surveyLayer(
	ctx context.Context, from *repository.Repository, d v1.Descriptor, diffID digest.Digest,
) (*mapped, error) {
	pack, err := packOf(d)
	if err != nil {
		return nil, notDirect{err}
	}
	var all tree.Entries
	var s *survey.Survey
	err = from.Whole(ctx, d, func(a store.Answer) (err error) {
		all = nil
		s, err = survey.Read(a.Body, inflated(d.Size), func(e *tree.Entry) error {
			all = append(all, e)
			return nil
		}, nil)
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
	l := &layer.Layer{Table: s.Table, Units: s.Units, Source: all.Source}
	return &mapped{Layer: l, whole: true}, nil
}
