package ingest

import (
	"context"
	"errors"
	"slices"

	"lighter/hub/registry"
	"lighter/wire"
)

// indexesAlone says of each index that a name stands for, those below its root
// included, whether no other name in the repository needs it. The catalog knows
// roots and images alone, so they are looked for in the registry.
func (s *Service) indexesAlone(ctx context.Context, ref wire.Ref, root registry.Manifest) (map[string]bool, error) {
	from := own{s.registry, ref.Repository}
	// Of an index that cannot be read on, what can be read has to go.
	e, _ := expand(ctx, from, root, nil)
	alone := map[string]bool{}
	for _, index := range e.indexes {
		alone[index.Digest] = true
	}
	if len(alone) == 0 {
		return nil, nil
	}
	images, err := s.catalog.Images(ctx, "")
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, image := range images {
		other, err := wire.ParseName(image.Name)
		if err != nil || other.Repository != ref.Repository || other == ref || seen[image.Root] {
			continue
		}
		seen[image.Root] = true
		m, err := s.registry.Manifest(ctx, ref.Repository, image.Root)
		if errors.Is(err, registry.ErrNotFound) {
			continue // its copy has not come yet
		}
		if err != nil {
			return nil, err
		}
		e, err := expand(ctx, from, m, nil)
		for digest := range alone {
			// What cannot be read may need any of them.
			needed := err != nil || slices.ContainsFunc(e.indexes, func(m registry.Manifest) bool { return m.Digest == digest })
			alone[digest] = alone[digest] && !needed
		}
	}
	return alone, nil
}
