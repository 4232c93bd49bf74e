// Package registry promises the client side of OCI registries: references as
// people write them, credentials from docker's configuration, and images on
// this machine (OCI layouts, docker archives) pushed as they are, every digest
// kept.
//
// It refuses to change an image on the way, and to keep a credential.
package registry

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// Login is what a registry asks for. All empty: nothing.
type Login struct{ Username, Password, Token string }

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
	login := Login{Username: config.Username, Password: config.Password, Token: config.IdentityToken}
	if login.Token == "" {
		login.Token = config.RegistryToken
	}
	return login, nil
}
