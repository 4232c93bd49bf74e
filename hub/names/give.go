package names

import (
	"context"
	"errors"
	"fmt"

	"lighter/hub/catalog"
	"lighter/hub/oci"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

// maxNamings bounds the attempts to give a name to an image while others change the name.
const maxNamings = 3

// NameOwn makes a name stand for a manifest of the hub's registry: the one that the name's
// repository has under reference, a tag or digest. NameOwn returns the images for the platforms, or
// all entries of the catalog under the name if the manifest is not an image. The error wraps
// report.ErrInvalid if there is no image for any of the platforms. It wraps report.ErrBusy if the
// last of maxNamings attempts has changed nothing, because others changed the name meanwhile.
func (s *Service) NameOwn(
	ctx context.Context, ref wire.Ref, reference string, platforms []string,
) (images []catalog.Image, err error) {
	lasted := false
	for range maxNamings {
		if images, lasted, err = s.nameOwn(ctx, ref, reference, platforms); err != nil || lasted {
			return images, err
		}
	}
	if images == nil {
		return nil, fmt.Errorf("%w: %s is being given to other images at this moment; try again", report.ErrBusy,
			ref.Name())
	}
	return images, nil
}

// nameOwn is one attempt of NameOwn. It announces the change first (announce). lasted is false if
// the tag in the registry got another manifest meanwhile: then nothing was changed, and images is
// nil. lasted is also false if the announcement was gone or replaced when the change was complete:
// another process may have changed the name at the same time.
func (s *Service) nameOwn(
	ctx context.Context, ref wire.Ref, reference string, platforms []string,
) (images []catalog.Image, lasted bool, err error) {
	announced, err := s.announce(ctx, ref.Name())
	if err != nil {
		return nil, false, err
	}
	members, err := s.touchOwn(ctx, ref, reference, platforms)
	if err != nil {
		announced.settled() // nothing has changed
		return nil, false, err
	}
	ctx = context.WithoutCancel(ctx) // the following is completed even if the client goes
	images, err = s.putOwn(ctx, ref, members, ref.Tag != "" && reference != ref.Tag)
	if err != nil {
		return nil, false, err
	}
	return images, announced.settled() && images != nil, nil
}

// touchOwn reads an image of the hub's registry that is to get a name. It waits while a part of the
// image, or the tag, is being deleted.
func (s *Service) touchOwn(
	ctx context.Context, ref wire.Ref, reference string, platforms []string,
) (*oci.Members, error) {
	repository := s.registry.Repository(ref.Repository)
	if ref.Tag != "" {
		if err := repository.TouchTag(ctx, ref.Tag); err != nil {
			return nil, err
		}
	}
	root, err := repository.Manifest(ctx, reference)
	if err != nil {
		return nil, err
	}
	if err := repository.Touch(ctx, root); err != nil {
		return nil, err
	}
	members, err := oci.Expand(ctx, repository, root, platforms)
	if err != nil {
		return nil, err
	}
	if err := members.CheckPlatforms(); err != nil {
		return nil, fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	return members, nil
}

// putOwn makes a name stand for an image of the hub's registry: in the catalog and, if move is
// true, in the registry. If move is false, and the name now stands for another image in the
// registry, putOwn changes nothing and returns no image.
func (s *Service) putOwn(
	ctx context.Context, ref wire.Ref, members *oci.Members, move bool,
) ([]catalog.Image, error) {
	defer s.Lock(ref.Repository)()
	repository := s.registry.Repository(ref.Repository)
	if move {
		if err := repository.PutManifest(ctx, ref.Tag, members.Root); err != nil {
			return nil, err
		}
	} else {
		root, err := repository.Manifest(ctx, ref.Reference())
		if err != nil || root.Digest != members.Root.Digest {
			return nil, err
		}
	}
	now, err := s.nameImages(ctx, catalog.Lease{}, ref, ImagesOf(members))
	if err != nil {
		return nil, err
	}
	return requested(members, now), nil
}

// NameCopy makes a name stand for the image with this root. The job of the lease has copied the
// image, except its manifests. put stores the manifests in the registry, and points the name's tag
// to the root. put is called while the repository is locked, and only if the process still owns the
// job. Otherwise the name may have been removed, or given to another image, and the error is
// catalog.ErrLost.
func (s *Service) NameCopy(
	ctx context.Context, l catalog.Lease, ref wire.Ref, root registry.Manifest, put func() error,
) error {
	announced, err := s.announce(ctx, ref.Name())
	if err != nil {
		return err
	}
	if err := announced.nameCopy(ctx, l, ref, root, put); err != nil {
		return err
	}
	announced.settled()
	return nil
}

func (a *announcement) nameCopy(
	ctx context.Context, l catalog.Lease, ref wire.Ref, root registry.Manifest, put func() error,
) error {
	defer a.Lock(ref.Repository)()
	if err := a.catalog.Jobs.Hold(ctx, l); err != nil {
		return err
	}
	if err := put(); err != nil {
		return err
	}
	// No platform is wanted here: the wanted images were queued with the job.
	members, err := oci.Expand(ctx, a.registry.Repository(ref.Repository), root, nil)
	if err != nil {
		return err
	}
	err = a.catalog.NameAs(ctx, l, ref.Name(), ImagesOf(members))
	if errors.Is(err, catalog.ErrLost) { // the job was lost after Hold
		restoring, end := catalog.Outlast(ctx)
		defer end()
		return errors.Join(err, a.restore(restoring, ref))
	}
	return err
}

// restore points the tag of a name to the image that the catalog has under the name. It announces
// this as a change of its own, because another process may have withdrawn the announcement of the
// lost change. The new announcement replaces that of a change in progress: NameOwn and pushes
// notice that, and begin again. The new announcement is not withdrawn, so its job compares registry
// and catalog a minute later. The caller has locked the repository.
func (s *Service) restore(ctx context.Context, ref wire.Ref) error {
	announced, err := s.announce(ctx, ref.Name())
	if err != nil {
		return err
	}
	return announced.restoreTag(ctx, ref)
}

// restoreTag points the tag of a name to the image that the catalog has under it, or deletes the
// tag if there is none. It does nothing if another change of the name was announced after this one:
// that change decides what the name stands for. The caller has locked the repository.
func (a *announcement) restoreTag(ctx context.Context, ref wire.Ref) error {
	if ref.Tag == "" {
		return nil
	}
	return a.deleting(ctx, registry.TagKey(ref.Repository, ref.Tag), func(ctx context.Context) error {
		if last, err := a.isLast(ctx, ref.Name()); err != nil || !last {
			return err
		}
		return a.tagAsListed(ctx, ref)
	})
}

// tagAsListed points a tag to the image that the catalog has under its name, or deletes the tag if
// there is none. It is called while the tag is locked as for a deletion.
func (s *Service) tagAsListed(ctx context.Context, ref wire.Ref) error {
	images, err := s.catalog.Images(ctx, ref.Name())
	if err != nil {
		return err
	}
	repository := s.registry.Repository(ref.Repository)
	if len(images) == 0 {
		return repository.Delete(ctx, ref.Tag)
	}
	root, err := repository.Manifest(ctx, images[0].Root)
	if errors.Is(err, registry.ErrNotFound) { // a job is fetching it
		return nil
	}
	if err != nil {
		return err
	}
	return repository.Tag(ctx, ref.Tag, root)
}

// ImagesOf returns the images that the catalog is to have for a name. For an index without
// manifests it returns the index itself, so that the name is listed and can be removed.
func ImagesOf(members *oci.Members) []catalog.Image {
	root := members.Root.Digest
	images := make([]catalog.Image, 0, len(members.Manifests))
	for _, m := range members.Manifests {
		state := wire.StateStored
		if m.Wanted {
			state = wire.StateQueued
		}
		images = append(images, catalog.Image{Root: root, Digest: m.Digest, Platform: m.Platform, State: state,
			Size: m.Size()})
	}
	if len(images) == 0 {
		images = append(images, catalog.Image{Root: root, Digest: root, State: wire.StateStored})
	}
	return images
}

// requested returns the images for wanted platforms, or all if none is wanted. images has the order
// of ImagesOf.
func requested(members *oci.Members, images []catalog.Image) []catalog.Image {
	if !members.HasWanted() {
		return images
	}
	var wanted []catalog.Image
	for i, m := range members.Manifests {
		if m.Wanted {
			wanted = append(wanted, images[i])
		}
	}
	return wanted
}
