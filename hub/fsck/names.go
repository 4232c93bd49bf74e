package fsck

import (
	"context"
	"errors"
	"slices"

	"lighter/hub/registry"
	"lighter/wire"
)

// checkNames compares what names stand for in the catalog and in the registry. They differ if one
// of both was restored from a copy that is older than that of the other.
func (k *checking) checkNames(ctx context.Context) error {
	names, err := k.names(ctx)
	if err != nil {
		return err
	}
	progress := k.job.Step("compare", "names", int64(len(names)))
	lacking := wire.Finding{Problem: "names of images whose manifests the registry lacks or cannot read",
		Remedy: remedyNames}
	unlisted := wire.Finding{Problem: "tags of the registry that the catalog does not have, or has of other images",
		Remedy: remedyRepair}
	for _, name := range names {
		lacks, lists, err := k.Names.Difference(ctx, name)
		if err != nil {
			if err := k.passing(ctx, err); err != nil {
				return err
			}
			lacks = name + ": " + err.Error()
		}
		switch {
		case lacks != "":
			err = k.settle(ctx, &lacking, name, lacks)
		case lists != "":
			err = k.settle(ctx, &unlisted, name, lists)
		}
		if err != nil {
			return err
		}
		progress.Add(1)
	}
	k.add(lacking)
	k.add(unlisted)
	return nil
}

// passing returns an error that says nothing about the name itself, otherwise nil.
func (k *checking) passing(ctx context.Context, err error) error {
	if errors.Is(err, registry.ErrUnavailable) {
		return err
	}
	return k.transient(ctx, err)
}

// names returns the names of all images and all tags of the registry, sorted.
func (k *checking) names(ctx context.Context) (names []string, err error) {
	all, err := k.Catalog.Images(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, image := range all {
		names = append(names, image.Name)
	}
	err = k.Registry.Each(ctx, func(c *registry.Contents) error {
		for _, tag := range c.Tags {
			names = append(names, wire.Ref{Repository: c.Name(), Tag: tag}.Name())
		}
		return nil
	})
	slices.Sort(names)
	return slices.Compact(names), err
}

// settle counts a name that differs, and makes catalog and registry agree if that was asked for.
func (k *checking) settle(ctx context.Context, f *wire.Finding, name, text string) error {
	if k.Repair {
		err := k.Names.Settle(ctx, name)
		if err == nil {
			count(f, text)
			f.Repaired++
			return nil
		}
		if err := k.passing(ctx, err); err != nil {
			return err
		}
		text += "; " + err.Error()
	}
	count(f, text)
	if len(f.Images) < maxImages {
		f.Images = append(f.Images, name)
	}
	return nil
}
