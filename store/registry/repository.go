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
	table := registries.Registry{Host: host, Private: true, PlainHTTP: plainHTTP || isLocal(host)}
	all, err := registries.New([]registries.Registry{table}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return nil, err
	}
	return repository.Open(all, in.Name(), registries.Access{Login: authn.AuthConfig{Username: login.Username,
		Password: login.Password, IdentityToken: login.IdentityToken, RegistryToken: login.RegistryToken}})
}

// isLocal reports whether a registry is on this machine.
func isLocal(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
