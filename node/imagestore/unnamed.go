package imagestore

import "lighter/wire"

// unnamed has images whose names in the store all belong to other images, by the names that they
// have on the hub. They are not in the list. Without this record, each round would fetch them
// again.
type unnamed map[string]nameless

// nameless is such an image.
type nameless struct {
	manifest string
	names    []string // that it would have in the store
}

// of returns the record of those images that are still listed.
func (u unnamed) of(listed []wire.Image) unnamed {
	still := unnamed{}
	for _, i := range listed {
		if n, ok := u[i.Name]; ok && n.manifest == i.Digest {
			still[i.Name] = n
		}
	}
	return still
}

// add adds those of the images that a list does not have once its images have their names.
func (u unnamed) add(l *list, all []description) {
	images := l.byManifest()
	for _, d := range all {
		if l.find(images, d.listed) == nil {
			u[d.listed.Name] = nameless{d.listed.Digest, storeNames(d.listed, d.image.Repositories)}
		}
	}
}

// has reports whether an image would get no name, because others have all of its names.
func (u unnamed) has(i wire.Image, taken map[string]bool) bool {
	n, ok := u[i.Name]
	for _, name := range n.names {
		ok = ok && taken[name]
	}
	return ok
}
