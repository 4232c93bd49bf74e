package images

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/bytesize"
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

// CheckQuotas returns an error if a quota is invalid.
func CheckQuotas(quotas []Quota) error {
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

// images names the images that a quota is about, for users.
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

// errQuota marks errors of images that would exceed a quota.
var errQuota = errors.New("quota exceeded")

// Allow returns an error that wraps registry.ErrQuota if a manifest that is pushed would exceed a
// quota. Images that are pushed or added at the same moment do not see each other: together they
// may exceed it, until the next one is refused. The error of a manifest that cannot be read comes
// when it is stored.
func (s *Service) Allow(ctx context.Context, repository, reference string, root registry.Manifest) error {
	ref := wire.Ref{Repository: repository, Tag: reference}
	if wire.IsDigest(reference) {
		ref = wire.Ref{Repository: repository, Digest: reference}
	}
	if len(s.config.Quotas) == 0 {
		return nil
	}
	members, _ := oci.Expand(ctx, s.registry.Repository(repository), root, s.config.Platforms)
	if err := s.checkQuotas(ctx, ref.Name(), members); errors.Is(err, errQuota) {
		return fmt.Errorf("%w: %w", registry.ErrQuota, err)
	} else if err != nil {
		return err
	}
	return nil
}

// checkQuotas returns an error that wraps errQuota if a name must not refer to these images.
func (s *Service) checkQuotas(ctx context.Context, name string, members *oci.Members) error {
	for _, q := range s.config.Quotas {
		if !q.isAbout(name) {
			continue
		}
		sizes, err := s.sizesBelow(ctx, q, name)
		if err != nil {
			return err
		}
		used := sum(sizes)
		for _, m := range members.Manifests {
			sizes[m.Digest] = sizeOf(m.Bytes)
		}
		if all := sum(sizes); all > int64(q.Bytes) && all > used {
			return fmt.Errorf("%w: %s would take %s with %s, and %s without it; the quota is %s: "+
				"remove images (lighter images, lighter rm), or raise the quota in the hub's configuration",
				errQuota, q.images(), humanize.IBytes(uint64(all)), name, humanize.IBytes(uint64(used)),
				humanize.IBytes(uint64(q.Bytes)))
		}
	}
	return nil
}

// sizesBelow returns the sizes of the images that a quota is about, by digest. It leaves out images
// that have no other name than name, which is about to refer to other images.
func (s *Service) sizesBelow(ctx context.Context, q Quota, name string) (map[string]int64, error) {
	all, err := s.catalog.ImageBytes(ctx)
	sizes := map[string]int64{}
	for _, i := range all {
		if i.Name != name && q.isAbout(i.Name) {
			sizes[i.Digest] = i.Size
		}
	}
	return sizes, err
}

// QuotaUse returns the bytes that count for each quota, by its prefix.
func (s *Service) QuotaUse(ctx context.Context) (map[string]int64, error) {
	use := map[string]int64{}
	for _, q := range s.config.Quotas {
		sizes, err := s.sizesBelow(ctx, q, "")
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

// sizeOf returns the bytes of config and layers that a manifest names.
func sizeOf(manifest []byte) int64 {
	var m v1.Manifest
	if json.Unmarshal(manifest, &m) != nil {
		return 0
	}
	size := max(m.Config.Size, 0)
	for _, layer := range m.Layers {
		size += max(layer.Size, 0)
	}
	return size
}
