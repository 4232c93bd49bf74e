package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"lighter/wire"
)

// manifestTypes are the media types of an image's manifest that a registry is asked for.
const manifestTypes = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"

// maxObject bounds a manifest or a config of the hub's registry, in bytes: no hub has larger ones.
const maxObject = 8 << 20

// RegistryObject returns a manifest or a small blob of the hub's registry (kind:
// wire.RegistryManifests, wire.RegistryBlobs), of maxObject bytes at most. Every answer 404 or 410
// counts as chunk.ErrNotFound: a mirror has no registry.
func (c *Client) RegistryObject(ctx context.Context, repository, kind, digest string) ([]byte, error) {
	r := request{method: http.MethodGet, path: wire.RegistryPath(repository, kind, digest), atRoot: true}
	if kind == wire.RegistryManifests {
		r.header = http.Header{"Accept": {manifestTypes}}
	}
	res, err := c.do(ctx, r)
	if refused, ok := errors.AsType[*Error](err); ok {
		refused.Missing = refused.Status == http.StatusNotFound || refused.Status == http.StatusGone
	}
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxObject+1))
	if err == nil && len(b) > maxObject {
		err = fmt.Errorf("it has more than %d bytes", maxObject)
	}
	if err != nil {
		return nil, fmt.Errorf("hub %s: read %s: %w", c.url, r.path, err)
	}
	return b, nil
}
