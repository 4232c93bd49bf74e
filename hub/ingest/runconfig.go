package ingest

import (
	"context"
	"encoding/json"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/catalog"
	"lighter/wire"
)

// RunConfig returns how a container of a ready image runs: its config's part of that name.
func (s *Service) RunConfig(ctx context.Context, image catalog.Image) (v1.ImageConfig, error) {
	ref, err := wire.ParseName(image.Name)
	if err != nil {
		return v1.ImageConfig{}, err
	}
	m, err := s.registry.Manifest(ctx, ref.Repository, image.Digest)
	if err != nil {
		return v1.ImageConfig{}, err
	}
	manifest, err := parseManifest(m)
	if err != nil {
		return v1.ImageConfig{}, err
	}
	b, err := own{s.registry, ref.Repository}.Config(ctx, manifest.Config)
	if err != nil {
		return v1.ImageConfig{}, err
	}
	var config v1.Image
	err = json.Unmarshal(b, &config)
	return config.Config, err
}
