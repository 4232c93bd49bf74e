package registries

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// Configs returns the texts of files as Docker's config.json that may have a login for a
// repository, HOST[:PORT]/PATH, the preferred one first. afresh says that the login that these had
// before was refused.
type Configs func(ctx context.Context, repository string, afresh bool) (texts [][]byte)

// noLoginLife is how long a repository is read without a login before the fallback is asked again.
const noLoginLife = 10 * time.Second

// SetFallback sets who is asked for the logins of registries whose table names none. It is called
// before any session is made. These logins are sent over TLS only, unless the registry's table or
// the user allows plain HTTP.
func (r *Registries) SetFallback(c Configs) { r.fallback = &fallback{c} }

// fallback is the provider for registries without a login in the configuration.
type fallback struct{ configs Configs }

func (f *fallback) credentials(ctx context.Context, repository string, afresh bool) (credentials, error) {
	all := map[string]authn.AuthConfig{}
	for _, text := range f.configs(ctx, repository, afresh) {
		var c dockerConfig
		if json.Unmarshal(text, &c) != nil {
			continue // one that its owner cannot use either
		}
		for key, login := range c.Auths {
			if _, has := all[key]; !has {
				all[key] = login
			}
		}
	}
	c, err := kept{answer: answer{auth: all}}.pick(repository)
	if c.AuthConfig == (authn.AuthConfig{}) {
		c.until = time.Now().Add(noLoginLife)
	}
	return c, err
}

// RepositoryOfImage returns the repository that an image's reference names, as RepositoryOf does.
func RepositoryOfImage(reference string) (string, error) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return "", err
	}
	return RepositoryOf(ref.Context()), nil
}
