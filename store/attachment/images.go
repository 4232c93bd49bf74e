package attachment

import (
	"context"
	"encoding/json"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/guess"
	"lighter/store/registry"
)

// Images finds an image in its registry, for a platform (registry.Source.Originals): ref is
// HOST/REPO[:TAG|@DIGEST]. It is read with the credentials of this user's Docker configuration.
// plainHTTP allows plain HTTP to a registry that is not on this machine. The error wraps
// registry.ErrNoImage if ref is no such name.
func Images(ctx context.Context, ref, platform string, plainHTTP bool) (all []Image, err error) {
	source, err := registry.FindSource(ctx, ref, plainHTTP)
	if err != nil {
		return nil, err
	}
	originals, err := source.Originals(platform)
	if err != nil {
		return nil, err
	}
	from, err := registry.Repository(ctx, ref, plainHTTP)
	if err != nil {
		return nil, err
	}
	for _, o := range originals {
		m, err := from.Manifest(ctx, o.Digest)
		if err != nil {
			return nil, err
		}
		im := Image{Platform: platforms.Format(o.Platform), Layers: o.Layers, From: from,
			Manifest: v1.Descriptor{MediaType: m.MediaType, Digest: m.Digest, Size: int64(len(m.Bytes))}}
		var config v1.Image
		if err := json.Unmarshal(o.Config, &config); err != nil {
			return nil, err
		}
		im.Config = guess.ConfigOf(config.Config)
		for _, d := range o.DiffIDs {
			im.DiffIDs = append(im.DiffIDs, digest.Digest(d))
		}
		all = append(all, im)
	}
	return all, nil
}
