// Package registry is the commands' client of OCI registries: it finds credentials in Docker's
// configuration, pushes images that are on this machine to a hub, and pulls images that no hub has.
//
// An OCI layout is pushed as it is, with all its digests. A docker archive has no digests and no
// compressed layers, so an image is made of it. Its digest depends on the version of the library
// that compresses the layers.
//
// The package stores no credentials.
package registry

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// Login holds the credentials for a registry. If all fields are empty, there are none.
type Login struct {
	Username, Password string
	IdentityToken      string // is exchanged for other tokens
	RegistryToken      string // is sent as it is
}

// ErrNoImage marks errors of references that cannot be parsed.
var ErrNoImage = errors.New("not an image in a registry")

// Credentials returns the credentials that this user's Docker configuration has for the registry of
// ref, HOST/REPO:TAG. It runs credential helpers. The error wraps ErrNoImage if ref is not a
// reference.
func Credentials(ctx context.Context, ref string) (Login, error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return Login{}, fmt.Errorf("%q is %w: want HOST/REPO:TAG: %w", ref, ErrNoImage, err)
	}
	registry := parsed.Context()
	auth, err := authn.Resolve(ctx, authn.DefaultKeychain, registry)
	if err != nil {
		return Login{}, fmt.Errorf("find credentials for %s: %w", registry.RegistryStr(), err)
	}
	config, err := authn.Authorization(ctx, auth)
	if err != nil {
		return Login{}, fmt.Errorf("find credentials for %s: %w", registry.RegistryStr(), err)
	}
	return Login{Username: config.Username, Password: config.Password,
		IdentityToken: config.IdentityToken, RegistryToken: config.RegistryToken}, nil
}
