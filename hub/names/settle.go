package names

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

// settle makes registry and catalog agree about a name. The error is catalog.ErrLost if the job was
// lost, or has a request.
func (s *Service) settle(ctx context.Context, j *jobs.Running) error {
	ref, err := wire.ParseName(j.Key)
	if err != nil {
		return err
	}
	var c change
	if err := json.Unmarshal(j.Payload, &c); err != nil {
		return err
	}
	if c.Remove {
		err = s.remove(ctx, ref, j.Lease())
	} else {
		err = s.compare(ctx, ref, j.Lease())
	}
	if errors.Is(err, registry.ErrUnavailable) && !catalog.IsAway(err) && !s.registry.IsAway(ctx, err) {
		return away.Final(fmt.Errorf("the registry's files of repository %s cannot be read: restore them, or push "+
			"its images again; then run lighter fsck --repair: %w", ref.Repository, err))
	}
	return err
}

// compare copies what a name stands for from the registry to the catalog if they differ. If the
// name's tag is dangling (difference), compare first repairs the tag from the catalog.
func (s *Service) compare(ctx context.Context, ref wire.Ref, l catalog.Lease) error {
	defer s.Lock(ref.Repository)()
	d, err := s.difference(ctx, ref)
	if err == nil && d.dangling {
		if err = s.repairTag(ctx, l, ref); err == nil {
			d, err = s.difference(ctx, ref)
		}
	}
	switch {
	case err != nil:
		return err
	case d.gone:
		return s.forget(ctx, l, ref.Name(), "")
	case d.changed:
		return s.readName(ctx, l, ref)
	}
	for _, digest := range d.missing {
		if err := s.forget(ctx, l, ref.Name(), digest); err != nil {
			return err
		}
	}
	return nil
}

// repairTag points a dangling tag to the image that the catalog has under its name. It does nothing
// if the name was changed meanwhile: that change decides what the name stands for. While the change
// is announced, the error is catalog.ErrLost. The repository is locked.
func (s *Service) repairTag(ctx context.Context, l catalog.Lease, ref wire.Ref) error {
	return s.deleting(ctx, registry.TagKey(ref.Repository, ref.Tag), func(ctx context.Context) error {
		if err := s.catalog.Jobs.HoldUnchanged(ctx, l); err != nil {
			return err
		}
		if d, err := s.difference(ctx, ref); err != nil || !d.dangling { // another process has changed it
			return err
		}
		return s.tagAsListed(ctx, ref)
	})
}

// difference is how the catalog differs from the registry about a name.
type difference struct {
	gone    bool // the registry does not have the name, or its manifest
	changed bool // the name stands for another manifest in the registry, or is not in the catalog
	// dangling: the registry has the tag, lacks the manifest that the tag points to, and has the
	// image that the catalog has under the name. A registry can be like this if its files were
	// copied while the tag moved.
	dangling bool
	missing  []string // digests of ready images whose manifests the registry does not have
}

func (d difference) differs() bool { return d.gone || d.changed || d.dangling || len(d.missing) > 0 }

// difference compares what a name stands for in the catalog and in the registry. There is no
// difference if a job is going to give the name to its image.
func (s *Service) difference(ctx context.Context, ref wire.Ref) (d difference, err error) {
	j, err := s.catalog.Jobs.Open(ctx, s.ingestion.Kind(), ref.Name())
	switch {
	case err == nil && s.ingestion.IsCopy(j):
		return d, nil
	case err != nil && !errors.Is(err, catalog.ErrNotFound):
		return d, err
	}
	images, err := s.catalog.Images(ctx, ref.Name())
	if err != nil {
		return d, err
	}
	repository := s.registry.Repository(ref.Repository)
	root, err := repository.Manifest(ctx, ref.Reference())
	switch {
	case errors.Is(err, registry.ErrNotFound):
		d.dangling, err = s.isDangling(ctx, ref, images)
		// Images that are neither ready nor stored did not get the name yet.
		d.gone = !d.dangling && slices.ContainsFunc(images, wasNamed)
		return d, err
	case err != nil:
		return d, err
	case !slices.ContainsFunc(images, func(i catalog.Image) bool { return i.Root == root.Digest }):
		d.changed = true
		return d, nil
	}
	for _, image := range images { // a manifest below an index may have been deleted
		if image.State != wire.StateReady {
			continue
		}
		if _, err := repository.Manifest(ctx, image.Digest); errors.Is(err, registry.ErrNotFound) {
			d.missing = append(d.missing, image.Digest)
		} else if err != nil {
			return d, err
		}
	}
	return d, nil
}

// isDangling reports whether the registry has the tag of a name and the image that the catalog has
// under the name. The caller has found that the manifest that the tag points to is missing.
func (s *Service) isDangling(ctx context.Context, ref wire.Ref, images []catalog.Image) (bool, error) {
	if ref.Tag == "" || len(images) == 0 {
		return false, nil
	}
	repository := s.registry.Repository(ref.Repository)
	if has, err := repository.HasTag(ctx, ref.Tag); err != nil || !has {
		return false, err
	}
	_, err := repository.Manifest(ctx, images[0].Root)
	if errors.Is(err, registry.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Difference compares what a name stands for in the catalog and in the registry. missing describes
// the manifests that the registry lacks. unlisted is the name if the catalog does not have it or
// has other images under it, or if its tag is dangling. Both are empty if catalog and registry
// agree, or if a change of the name is in progress.
func (s *Service) Difference(ctx context.Context, name string) (missing, unlisted string, err error) {
	ref, err := report.ParseName(name)
	if err != nil {
		return "", "", err
	}
	if d, err := s.difference(ctx, ref); err != nil || !d.differs() {
		return "", "", err
	}
	defer s.Lock(ref.Repository)()
	if _, err := s.catalog.Jobs.Open(ctx, jobKind, ref.Name()); !errors.Is(err, catalog.ErrNotFound) {
		return "", "", err
	}
	d, err := s.difference(ctx, ref)
	switch {
	case d.gone:
		missing = "the manifest of " + name
	case len(d.missing) > 0:
		missing = "manifests of " + name + ": " + strings.Join(d.missing, ", ")
	case d.changed || d.dangling:
		unlisted = name
	}
	return missing, unlisted, err
}

// wasNamed reports whether the registry has, or had, an image.
func wasNamed(i catalog.Image) bool { return i.State == wire.StateReady || i.State == wire.StateStored }

// Settle makes the catalog agree with the registry about a name, as after a change of the registry.
// It returns when they agree. If another change of the name is in progress, Settle leaves it to
// that change.
func (s *Service) Settle(ctx context.Context, name string) error {
	ref, err := report.ParseName(name)
	if err != nil {
		return err
	}
	n, err := s.catalog.Jobs.AddNew(ctx, change{}.job(ref.Name()))
	if err != nil || n == 0 {
		return err
	}
	s.jobs.Changed(jobKind, ref.Name())
	silent := report.NewSender(func(wire.Progress) error { return nil })
	_, err = s.jobs.AwaitEnd(ctx, jobKind, ref.Name(), n, silent)
	if errors.Is(err, catalog.ErrNotFound) { // a push has replaced the job and withdrawn it
		return nil
	}
	return err
}
