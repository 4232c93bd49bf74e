package hub

import (
	"context"
	"fmt"

	"lighter/format/index"
	"lighter/hub/catalog"
	"lighter/hub/images"
	"lighter/hub/ingest"
	"lighter/hub/serve"
	"lighter/wire"
)

// nodeImages answers nodes' questions about images with statements that the domain's keys sign. A
// statement about a chain is signed when its tree is made (ingest.Trees), and one about an image's
// manifest when a node asks for it: the image's names may have changed.
type nodeImages struct {
	*ingest.Trees
	images        *images.Service
	catalog       *catalog.Catalog
	keys          signingKeys
	registryHosts []string // HOST[:PORT] under which nodes pull from the hub's own registry
}

var _ serve.Images = nodeImages{}

// Soon returns when an image that is pending will be ready.
func (n nodeImages) Soon(ctx context.Context, digest string) (*wire.Soon, error) {
	return n.images.Soon(ctx, digest)
}

// Manifest returns the signed statement about the image with a manifest: its chain, and the
// repositories of its names and sources. The image's diffIDs and its chain's statement come with
// it. The error is catalog.ErrNotFound if no ready image has the manifest.
func (n nodeImages) Manifest(ctx context.Context, digest string) (*wire.Manifest, error) {
	known, err := n.catalog.Manifest(ctx, digest)
	if err != nil {
		return nil, err
	}
	repositories := known.Sources
	for _, name := range known.Names {
		ref, err := wire.ParseName(name)
		if err != nil {
			return nil, fmt.Errorf("manifest %s: %w", digest, err)
		}
		repositories = append(repositories, ref.NamedRepository())
		for _, host := range n.registryHosts {
			repositories = append(repositories, host+"/"+ref.Repository)
		}
	}
	return &wire.Manifest{
		Image:      index.SignImage(n.keys, digest, known.Statement.Chain, repositories),
		DiffIDs:    known.DiffIDs,
		LayerBytes: known.Bytes,
		Statement:  known.Statement,
	}, nil
}
