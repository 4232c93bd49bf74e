package fsck

import (
	"context"
	"slices"

	"lighter/hub/registry"
	"lighter/wire"
)

// checkNames compares what names stand for in the catalog and in the registry. They differ if one
// of them was restored from an older copy than the other.
func (k *checking) checkNames(ctx context.Context) error {
	names, known, err := k.names(ctx)
	if err != nil {
		return err
	}
	progress := k.job.Step("compare", "names", int64(len(names)))
	var lacking, unlisted []differing
	unread := 0 // of lacking
	for _, name := range names {
		lacks, lists, err := k.Names.Difference(ctx, name)
		if err != nil {
			if err := k.transient(ctx, err); err != nil {
				return err
			}
			lacking = append(lacking, differing{name, name + ": " + err.Error(), true})
			unread++
		}
		switch {
		case lacks != "":
			lacking = append(lacking, differing{name, lacks, false})
		case lists != "":
			unlisted = append(unlisted, differing{name, lists, false})
		}
		progress.Add(1)
	}
	f := wire.Finding{Problem: "names of images whose manifests the registry lacks or cannot read", Remedy: remedyNames}
	// It may be the wrong registry if most of the names that it can read lack their manifests,
	// however few names there are.
	allowed := len(lacking)-unread <= (known-unread)/2 || k.Confirm
	if !allowed {
		f.Remedy = remedyManyNames
	}
	if err := k.settle(ctx, f, lacking, k.Repair && allowed); err != nil {
		return err
	}
	f = wire.Finding{Problem: "tags of the registry that the catalog does not have, or has of other images",
		Remedy: remedyRepair}
	return k.settle(ctx, f, unlisted, k.Repair)
}

// differing is a name about which catalog and registry differ.
type differing struct {
	name, text string // text says how
	unread     bool   // the registry cannot read it, so they cannot be made to agree
}

// names returns the names of all images and all tags of the registry, sorted. known is how many of
// them the catalog has.
func (k *checking) names(ctx context.Context) (names []string, known int, err error) {
	all, err := k.Catalog.Images(ctx, "")
	if err != nil {
		return nil, 0, err
	}
	for _, image := range all {
		names = append(names, image.Name)
	}
	slices.Sort(names)
	names = slices.Compact(names) // a name may have several images
	known = len(names)
	f := wire.Finding{Problem: "repositories of the registry that cannot be read", Remedy: remedyUnread}
	err = k.Registry.Each(ctx, func(c *registry.Contents) error {
		if c.Err != nil {
			if err := k.transient(ctx, c.Err); err != nil {
				return err
			}
			count(&f, c.Name()+": "+c.Err.Error())
		}
		for _, tag := range c.Tags {
			names = append(names, wire.Ref{Repository: c.Name(), Tag: tag}.Name())
		}
		return nil
	})
	k.add(f)
	slices.Sort(names)
	return slices.Compact(names), known, err
}

// settle adds a finding about names that differ. With repair, it first makes the catalog agree with
// the registry about them.
func (k *checking) settle(ctx context.Context, f wire.Finding, all []differing, repair bool) error {
	for _, d := range all {
		if repair && !d.unread {
			err := k.Names.Settle(ctx, d.name)
			if err == nil {
				count(&f, d.text)
				f.Repaired++
				continue
			}
			if err := k.transient(ctx, err); err != nil {
				return err
			}
			d.text += "; " + err.Error()
		}
		count(&f, d.text)
		if len(f.Images) < maxImages {
			f.Images = append(f.Images, d.name)
		}
	}
	k.add(f)
	return nil
}
