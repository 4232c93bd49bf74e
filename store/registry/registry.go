// Package registry promises the client side of OCI registries: references as
// people write them, credentials from docker's configuration, and images on
// this machine pushed to a hub: OCI layouts as they are, every digest kept;
// docker archives, which have no digests and no compression, as images that are
// made of them.
//
// It refuses to keep a credential. Hazard: what digests the image of an archive
// gets depends on the version of the library that compresses its layers.
package registry

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// Login is what a registry asks for. All empty: nothing.
type Login struct {
	Username, Password string
	IdentityToken      string // is exchanged for others
	RegistryToken      string // is sent as it is
}

// Credentials returns what docker's configuration of this user has for the
// registry of ref, HOST/REPO:TAG. Helpers are asked.
func Credentials(ctx context.Context, ref string) (Login, error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return Login{}, fmt.Errorf("%q is not an image in a registry: want HOST/REPO:TAG: %w", ref, err)
	}
	auth, err := authn.Resolve(ctx, authn.DefaultKeychain, parsed.Context())
	if err != nil {
		return Login{}, fmt.Errorf("credentials for %s: %w", parsed.Context().RegistryStr(), err)
	}
	config, err := authn.Authorization(ctx, auth)
	if err != nil {
		return Login{}, fmt.Errorf("credentials for %s: %w", parsed.Context().RegistryStr(), err)
	}
	return Login{config.Username, config.Password, config.IdentityToken, config.RegistryToken}, nil
}
