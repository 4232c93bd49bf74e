// Package quota bounds the images below prefixes of their names. It refuses an image that would
// exceed a quota, before the image is stored or queued. It removes no image: package retention
// decides which images go.
//
// An image with several names counts once. A layer counts for each image that has it. An image
// counts as soon as it is added, even if it is not ready yet. When a tag moves, its previous image
// no longer counts, unless that image has another name.
//
// Hazard: images that are pushed or added at the same moment do not see each other. Together they
// may exceed a quota; only the next image is refused. Each check reads the names and sizes of all
// images from the catalog.
package quota

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"

	"lighter/bytesize"
	"lighter/hub/catalog"
	"lighter/hub/oci"
	"lighter/hub/registry"
	"lighter/wire"
)

// Quota bounds the images in the repositories below a prefix.
type Quota struct {
	Domain string        `toml:"domain,omitempty" comment:"Domain whose images the quota is about. Empty: the default domain."`
	Prefix string        `toml:"prefix" comment:"First parts of names: ci is about ci/a and ci/a/b, and not about cim/a. Empty: all images."`
	Bytes  bytesize.Size `toml:"bytes" comment:"Bytes of the images, as lighter images shows them (SIZE): 500GB. An image with several names counts once, and layers that images share count for each."`
}

// DomainName returns the name of the quota's domain.
func (q Quota) DomainName() string { return cmp.Or(q.Domain, wire.DefaultDomain) }

// Check returns an error if a quota is invalid.
func Check(quotas []Quota) error {
	seen := map[[2]string]bool{}
	for i, q := range quotas {
		switch {
		case q.Bytes <= 0:
			return fmt.Errorf("quota %d: bytes is %s: want more than 0", i+1, q.Bytes)
		case strings.HasPrefix(q.Prefix, "/") || strings.HasSuffix(q.Prefix, "/"):
			return fmt.Errorf("quota %d: prefix %q begins or ends with /: want HOST/PATH or PATH", i+1, q.Prefix)
		case seen[[2]string{q.DomainName(), q.Prefix}]:
			return fmt.Errorf("quota %d: there is another one with prefix %q", i+1, q.Prefix)
		}
		seen[[2]string{q.DomainName(), q.Prefix}] = true
	}
	return nil
}

// images describes to users which images a quota is about.
func (q Quota) images() string {
	if q.Prefix == "" {
		return "all images of the domain " + q.DomainName()
	}
	return fmt.Sprintf("the images below %q", q.Prefix)
}

func (q Quota) isAbout(name string) bool {
	ref, err := wire.ParseName(name)
	return err == nil && (q.Prefix == "" || strings.HasPrefix(ref.NamedRepository()+"/", q.Prefix+"/"))
}

// Checker checks the quotas of a domain. It is safe for concurrent use.
type Checker struct {
	quotas   []Quota
	catalog  *catalog.Catalog
	registry *registry.Registry
}

// New returns a checker of these quotas, for the images in a catalog and a registry.
func New(quotas []Quota, c *catalog.Catalog, r *registry.Registry) *Checker {
	return &Checker{quotas: quotas, catalog: c, registry: r}
}

// Allow returns an error that wraps registry.ErrQuota if a manifest that is pushed would exceed a
// quota. If the manifest cannot be parsed, Allow returns no error for this: storing it fails.
func (c *Checker) Allow(ctx context.Context, repository, reference string, root registry.Manifest) error {
	if len(c.quotas) == 0 {
		return nil
	}
	ref := wire.Ref{Repository: repository, Tag: reference}
	if wire.IsDigest(reference) {
		ref = wire.Ref{Repository: repository, Digest: reference}
	}
	members, _ := oci.Expand(ctx, c.registry.Repository(repository), root, nil)
	return c.AllowName(ctx, ref.Name(), members)
}

// AllowName returns an error that wraps registry.ErrQuota if these images would exceed a quota
// under a name.
func (c *Checker) AllowName(ctx context.Context, name string, members *oci.Members) error {
	for _, q := range c.quotas {
		if !q.isAbout(name) {
			continue
		}
		sizes, err := c.sizesBelow(ctx, q, name)
		if err != nil {
			return err
		}
		used := sum(sizes)
		for _, m := range members.Manifests {
			sizes[m.Digest] = m.Size()
		}
		if all := sum(sizes); all > int64(q.Bytes) && all > used {
			return fmt.Errorf("%w: quota exceeded: %s would take %s with %s, and %s without it; the quota is %s: "+
				"remove images (lighter images, lighter rm), or raise the quota in the hub's configuration",
				registry.ErrQuota, q.images(), humanize.IBytes(uint64(all)), name, humanize.IBytes(uint64(used)),
				humanize.IBytes(uint64(q.Bytes)))
		}
	}
	return nil
}

// sizesBelow returns the sizes of the images that a quota is about, by digest. It leaves out images
// whose only name is name, because name is about to refer to other images.
func (c *Checker) sizesBelow(ctx context.Context, q Quota, name string) (map[string]int64, error) {
	all, err := c.catalog.ImageBytes(ctx)
	sizes := map[string]int64{}
	for _, i := range all {
		if i.Name != name && q.isAbout(i.Name) {
			sizes[i.Digest] = i.Size
		}
	}
	return sizes, err
}

// Use returns the bytes that count for each quota, by its prefix.
func (c *Checker) Use(ctx context.Context) (map[string]int64, error) {
	use := map[string]int64{}
	for _, q := range c.quotas {
		sizes, err := c.sizesBelow(ctx, q, "")
		if err != nil {
			return nil, err
		}
		use[q.Prefix] = sum(sizes)
	}
	return use, nil
}

func sum(sizes map[string]int64) (all int64) {
	for _, size := range sizes {
		all += size
	}
	return all
}
