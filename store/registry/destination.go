package registry

import (
	"context"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"lighter/registries/push"
)

// Destination is a name in a registry that an image is pushed to in parts.
type Destination struct{ *push.Destination }

// FindDestination returns the destination with a name, HOST/REPO[:TAG]. It has the credentials of
// this user's Docker configuration. The error wraps ErrNoImage if ref is no such name.
func FindDestination(ctx context.Context, ref string, plainHTTP bool) (*Destination, error) {
	parsed, err := parse(ref, plainHTTP)
	if err != nil {
		return nil, err
	}
	tag, ok := parsed.(name.Tag)
	if !ok {
		return nil, fmt.Errorf("%q is %w to push to: want HOST/REPO[:TAG]", ref, ErrNoImage)
	}
	to, err := push.New(tag, remoteOptions(ctx, onlyAllowed{plainHTTP, plainHTTPFlag, remote.DefaultTransport})...)
	return &Destination{to}, err
}

// Layer pushes a layer of an image. If the image is in another repository of the same registry, the
// registry is asked to take the layer from there.
func (d *Destination) Layer(ctx context.Context, from *Original, n int, open func() (io.ReadCloser, error)) error {
	if source, ok := from.layers[n].(*remote.MountableLayer); ok {
		return d.Mount(ctx, from.Layers[n], source.Reference, open)
	}
	return d.Blob(ctx, from.Layers[n], open)
}

// remoteOptions are how registries are reached: with the credentials of this user's Docker
// configuration.
func remoteOptions(ctx context.Context, transport onlyAllowed) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithTransport(transport)}
}
