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
	header := http.Header{}
	if kind == wire.RegistryManifests {
		header.Set("Accept", manifestTypes)
	}
	res, err := c.fromRegistry(ctx, wire.RegistryPath(repository, kind, digest), header)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxObject+1))
	if err == nil && len(b) > maxObject {
		err = fmt.Errorf("it has more than %d bytes", maxObject)
	}
	if err != nil {
		return nil, fmt.Errorf("hub %s: read %s: %w", c.url, wire.RegistryPath(repository, kind, digest), err)
	}
	return b, nil
}

// RegistryBlob opens a blob of the hub's registry, from an offset on. at is the offset of the first
// byte of the body: a registry that cannot give a part gives all of it. Errors are as those of
// RegistryObject. The caller closes the body.
func (c *Client) RegistryBlob(ctx context.Context, repository, digest string, from int64) (
	body io.ReadCloser, at int64, err error) {
	header := http.Header{}
	if from > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	res, err := c.fromRegistry(ctx, wire.RegistryPath(repository, wire.RegistryBlobs, digest), header)
	if err != nil {
		return nil, 0, err
	}
	if res.StatusCode == http.StatusPartialContent {
		at = from
	}
	return res.Body, at, nil
}

// fromRegistry requests a path of the hub's registry.
func (c *Client) fromRegistry(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	res, err := c.do(ctx, request{method: http.MethodGet, path: path, header: header, atRoot: true})
	if refused, ok := errors.AsType[*Error](err); ok {
		refused.Missing = refused.Status == http.StatusNotFound || refused.Status == http.StatusGone
	}
	return res, err
}
