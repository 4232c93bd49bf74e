package ingest

import (
	"context"
	"encoding/json"
	"time"

	"github.com/klauspost/compress/zstd"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/pack"
	"lighter/hub/catalog"

	"lighter/wire"
)

// Scratch is the directory for what is being made. It is on the file system of
// the objects, and emptied at each start.
func (s *Service) Scratch() string { return s.config.Scratch }

// RunConfig returns what the config of an image that is ready says of how it runs.
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

// Encode compresses a unit as those of images are, but after them: while one is being
// taken in, it rests for as long as it has worked.
func (s *Service) Encode(ctx context.Context, b *pack.UnitBuilder, dst []byte) ([]byte, error) {
	worked, err := s.Lend(ctx, func(enc *zstd.Encoder) { dst = b.Encode(dst, enc) })
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(worked):
		return dst, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Lend has work done by one of those who compress, whose encoder it may use. If an image
// is being taken in, it returns how long that was in its way, and otherwise 0.
func (s *Service) Lend(ctx context.Context, work func(enc *zstd.Encoder)) (inTheWay time.Duration, err error) {
	begin := time.Now()
	select {
	case enc := <-s.encoders:
		work(enc)
		s.encoders <- enc
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken == nil {
		return 0, nil
	}
	return time.Since(begin), nil
}
