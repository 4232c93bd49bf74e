// Package imageconfig reads the config of an image from the registry of a hub, for a container that
// is about to start.
//
// It returns a config only if everything between a pinned key and the config was verified: the
// hub's statement names the manifest, its chain and its repository; the manifest and the config
// have the digests by which they are named; and the config's diffIDs make the chain of the mounted
// tree. So neither a mirror nor a proxy can add a command or a variable to an image. Which manifest
// a tag stands for is the hub's word alone.
//
// A mirror has no manifests and no configs: one of the node's origins has to be a hub.
package imageconfig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/wire"
)

// Statements gets verified statements about images.
type Statements interface {
	Image(ctx context.Context, manifest string) (*index.ImageStatement, error)
}

// Registry reads the registry of a hub. take verifies what it gets, and returns an error that wraps
// a *chunk.InvalidError if it is wrong.
type Registry interface {
	RegistryObject(ctx context.Context, repository, kind, digest string, take func([]byte) error) error
}

// Reader reads configs. It is safe for concurrent use.
type Reader struct {
	Statements Statements
	Registry   Registry
}

// Image is the description of an image.
type Image struct {
	Manifest     []byte
	Config       []byte
	Repositories []string // where the image may be pulled from
}

// Config returns the config of an image that the hub has listed as ready.
func (r *Reader) Config(ctx context.Context, image wire.Image) ([]byte, error) {
	all, err := r.Image(ctx, image)
	return all.Config, err
}

// Image returns the manifest and the config of an image that the hub has listed as ready.
func (r *Reader) Image(ctx context.Context, image wire.Image) (Image, error) {
	all, err := r.image(ctx, image)
	if errors.Is(err, chunk.ErrNotFound) {
		err = fmt.Errorf("%w (a mirror has no configs: one of the node's hubs has to be a hub)", err)
	}
	if err != nil {
		return Image{}, fmt.Errorf("get the config of image %s: %w", image.Name, err)
	}
	return all, nil
}

func (r *Reader) image(ctx context.Context, image wire.Image) (all Image, err error) {
	ref, err := wire.ParseName(image.Name)
	if err != nil {
		return all, err
	}
	statement, err := r.Statements.Image(ctx, image.Digest)
	if err != nil {
		return all, err
	}
	if statement.Chain != image.Chain {
		return all, fmt.Errorf("manifest %s has chain %s, not %s", image.Digest, statement.Chain, image.Chain)
	}
	if !statement.Allows(ref.NamedRepository()) {
		return all, fmt.Errorf("the hub's statement about manifest %s does not name repository %s", image.Digest,
			ref.NamedRepository())
	}
	if all, err = r.objects(ctx, image); err == nil {
		all.Repositories = statement.Repositories
	}
	return all, err
}

// objects reads the manifest and the config of an image, and verifies both.
func (r *Reader) objects(ctx context.Context, image wire.Image) (all Image, err error) {
	ref, err := wire.ParseName(image.Name)
	if err != nil {
		return all, err
	}
	if all.Manifest, err = r.read(ctx, ref.Repository, wire.RegistryManifests, image.Digest); err != nil {
		return all, err
	}
	var manifest v1.Manifest
	if err := json.Unmarshal(all.Manifest, &manifest); err != nil {
		return all, fmt.Errorf("parse manifest %s: %w", image.Digest, err)
	}
	all.Config, err = r.read(ctx, ref.Repository, wire.RegistryBlobs, manifest.Config.Digest.String())
	if err != nil {
		return all, err
	}
	return all, checkChain(all.Config, image.Chain)
}

// read reads an object of the registry, and verifies its digest.
func (r *Reader) read(ctx context.Context, repository, kind, name string) (object []byte, err error) {
	want, err := digest.Parse(name)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, err)
	}
	err = r.Registry.RegistryObject(ctx, repository, kind, name, func(b []byte) error {
		if got := want.Algorithm().FromBytes(b); got != want {
			return &chunk.InvalidError{What: name + " in " + kind, Err: fmt.Errorf("its digest is %s", got)}
		}
		object = b
		return nil
	})
	return object, err
}

// checkChain returns an error unless the diffIDs of a config make the chain.
func checkChain(config []byte, chain string) error {
	var image v1.Image
	if err := json.Unmarshal(config, &image); err != nil {
		return fmt.Errorf("parse the config: %w", err)
	}
	if got := identity.ChainID(image.RootFS.DiffIDs).String(); got != chain {
		return fmt.Errorf("the diffIDs of the config make chain %s, and chain %s is mounted", got, chain)
	}
	return nil
}
