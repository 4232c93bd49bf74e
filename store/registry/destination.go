package registry

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"lighter/registries/push"
)

// Destination is a name in a registry that an image is pushed to in parts.
type Destination struct {
	*push.Destination
	in   name.Repository
	over onlyAllowed
}

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
	over := onlyAllowed{plainHTTP, plainHTTPFlag, remote.DefaultTransport}
	to, err := push.New(tag, remoteOptions(ctx, over)...)
	return &Destination{to, tag.Context(), over}, err
}

// May returns an error unless this user may push to the repository.
func (d *Destination) May(ctx context.Context) error {
	login, err := authn.Resolve(ctx, authn.DefaultKeychain, d.in)
	var client http.Client
	if err == nil {
		client.Transport, err = transport.NewWithContext(ctx, d.in.Registry, login, d.over,
			[]string{d.in.Scope(transport.PushScope)})
	}
	if err == nil {
		err = push.May(ctx, &client, d.in)
	}
	if err != nil {
		return fmt.Errorf("push to %s: %w", d.in, err)
	}
	return nil
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
