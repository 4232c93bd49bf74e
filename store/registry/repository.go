package registry

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"lighter/registries"
	"lighter/store/repository"
	"lighter/wire"
)

// Repository opens the repository of ref, HOST/REPO[:TAG|@DIGEST], for reading parts of blobs, with
// the credentials of this user's Docker configuration. plainHTTP allows plain HTTP to a registry
// that is not on this machine. The error wraps ErrNoImage if ref is no such name.
func Repository(ctx context.Context, ref string, plainHTTP bool) (*repository.Repository, error) {
	login, err := Credentials(ctx, ref)
	if err != nil {
		return nil, err
	}
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return nil, fmt.Errorf("%q is %w: %w", ref, ErrNoImage, err)
	}
	in := parsed.Context()
	host := in.RegistryStr()
	bare, _, err := net.SplitHostPort(host)
	if err != nil { // it has no port
		bare = host
	}
	table := registries.Registry{Host: host, Private: true, PlainHTTP: plainHTTP || wire.IsLoopback(bare)}
	all, err := registries.New([]registries.Registry{table}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return nil, err
	}
	return repository.Open(all, in.Name(), registries.Access{Login: authn.AuthConfig{Username: login.Username,
		Password: login.Password, IdentityToken: login.IdentityToken, RegistryToken: login.RegistryToken}})
}
