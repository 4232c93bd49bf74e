package ingest

import (
	"context"
	"fmt"
	"strings"

	"lighter/hub/catalog"
	wire "lighter/store/hub"
)

// Deleted takes note that a tag of the hub's registry is gone, or a manifest
// with all its tags.
func (s *Service) Deleted(ctx context.Context, repository, reference string) error {
	ref := wire.Ref{Repository: repository, Tag: reference}
	if !strings.Contains(reference, ":") { // no tag has a colon, every digest has
		return s.forget(ctx, ref.Name())
	}
	names, err := s.catalog.NamesIn(ctx, repository, reference)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := s.forget(ctx, name, reference); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) forget(ctx context.Context, name string, digests ...string) error {
	gone, err := s.catalog.Remove(ctx, name, digests...)
	if err != nil {
		return err
	}
	var numbers []int64
	for _, image := range gone {
		numbers = append(numbers, image.N)
	}
	s.drop(numbers)
	return nil
}

// Remove takes an image away: its name, and its manifests where no other name
// needs them. Its chunks and blobs stay.
func (s *Service) Remove(ctx context.Context, name string) error {
	ref, err := wire.ParseName(name)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	images, err := s.catalog.Images(ctx, ref.Name())
	if err != nil {
		return err
	}
	if len(images) == 0 {
		return fmt.Errorf("image %s: %w", ref.Name(), catalog.ErrNotFound)
	}
	// The registry first: what is left when this is interrupted can be seen, and
	// taken away once more.
	if ref.Tag != "" {
		if err := s.registry.Delete(ctx, ref.Repository, ref.Tag); err != nil {
			return err
		}
	}
	for _, image := range images {
		for _, digest := range []string{image.Root, image.Digest} {
			if err := s.deleteManifest(ctx, ref, digest); err != nil {
				return err
			}
		}
	}
	return s.forget(ctx, ref.Name())
}

// deleteManifest deletes a manifest of ref unless another name in the same
// repository needs it.
func (s *Service) deleteManifest(ctx context.Context, ref wire.Ref, digest string) error {
	names, err := s.catalog.NamesIn(ctx, ref.Repository, digest)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name != ref.Name() {
			return nil
		}
	}
	return s.registry.Delete(ctx, ref.Repository, digest)
}
