package images

import (
	"context"
	"fmt"

	"lighter/format/index"
	"lighter/wire"
)

// Manifest returns what a node needs to know of an image by its manifest, signed: its chain, and
// the repositories of the image's names and of its sources. The error is catalog.ErrNotFound if no
// ready image has the manifest.
func (s *Service) Manifest(ctx context.Context, digest string) (*wire.Manifest, error) {
	known, err := s.catalog.Manifest(ctx, digest)
	if err != nil {
		return nil, err
	}
	repositories := known.Sources
	for _, name := range known.Names {
		ref, err := wire.ParseName(name)
		if err != nil {
			return nil, fmt.Errorf("manifest %s: %w", digest, err)
		}
		repositories = append(repositories, ref.NamedRepository())
		for _, host := range s.config.RegistryHosts {
			repositories = append(repositories, host+"/"+ref.Repository)
		}
	}
	return &wire.Manifest{
		Image:     index.SignImage(s.config.Keys, digest, known.Statement.Chain, repositories),
		DiffIDs:   known.DiffIDs,
		Statement: known.Statement,
	}, nil
}
