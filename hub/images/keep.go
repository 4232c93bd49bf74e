package images

import (
	"context"
	"fmt"
	"slices"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/catalog"
	"lighter/hub/pull"
	"lighter/hub/registry"
)

// KeepBlobs says which layers of ready images the hub's registry stores. It always stores
// manifests, configs, and blobs that are not ingested.
type KeepBlobs string

const (
	// KeepAlways stores all layers.
	KeepAlways KeepBlobs = "always"
	// KeepUntilUpstream stores the layers that no other registry has, or that the hub cannot read
	// there without the login of a user.
	KeepUntilUpstream KeepBlobs = "until-upstream"
	// KeepNever stores layers only until they are ingested.
	KeepNever KeepBlobs = "never"
)

// Check returns an error if there is no such setting.
func (k KeepBlobs) Check() error {
	if !slices.Contains([]KeepBlobs{KeepAlways, KeepUntilUpstream, KeepNever}, k) {
		return fmt.Errorf("keep_blobs %q: want always, until-upstream or never", string(k))
	}
	return nil
}

// leaveLayers leaves the layers of an image at its source, if they need not be stored. The hub
// forgets the login of a job when the job ends. So with KeepUntilUpstream, layers that it cannot
// read without the login are stored.
func (s *Service) leaveLayers(ctx context.Context, i *pull.Image, from *pull.Source, withLogin bool) {
	if s.config.KeepBlobs == KeepAlways {
		return
	}
	if s.config.KeepBlobs == KeepUntilUpstream && withLogin {
		own, err := s.config.Upstream(ctx, from.Repository(), from.PlainHTTP())
		if err == nil {
			err = i.CanBeReadBy(ctx, own)
		}
		if err != nil {
			s.config.Log.Info("layers are stored: the hub cannot read them again without the login of the request",
				"source", from.Repository(), "err", err)
			return
		}
	}
	i.LeaveLayers()
}

// noteUpstream records that an image's source has these layers.
func (s *Service) noteUpstream(
	ctx context.Context, to registry.Repository, i *pull.Image, layers []v1.Descriptor,
) error {
	var at []catalog.Upstream
	var digests []string
	for _, d := range layers {
		digests = append(digests, d.Digest.String())
		at = append(at, catalog.Upstream{Repository: i.Source().Repository(), PlainHTTP: i.Source().PlainHTTP(),
			Digest: d.Digest.String(), Size: d.Size})
	}
	if err := to.TouchBlobs(ctx, digests); err != nil { // AddUpstreams does not wait for a deletion
		return err
	}
	return s.catalog.AddUpstreams(ctx, to.Name(), at)
}
