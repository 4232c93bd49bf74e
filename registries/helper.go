package registries

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
)

const (
	// helperLife is how long the login that a helper gives is used: helpers do not say it.
	helperLife = 5 * time.Minute
	// helperPrefix begins the names of Docker's credential helpers.
	helperPrefix = "docker-credential-"
	// tokenUser is the user name with which a helper marks an identity token.
	tokenUser = "<token>"
	// notFound is what a helper prints if it has no login.
	notFound = "credentials not found in native keychain"
)

// errHelper says which names of helpers are allowed.
var errHelper = errors.New("want an absolute path, or the NAME of a program " + helperPrefix + "NAME")

// helperProgram returns the program of a helper: NAME, or an absolute path.
func helperProgram(helper string, env []string) (*program, error) {
	switch {
	case filepath.IsAbs(helper):
	case helper == "" || strings.ContainsAny(helper, "/\\ "):
		return nil, errHelper
	default:
		helper = helperPrefix + strings.TrimPrefix(helper, helperPrefix)
	}
	return &program{argv: []string{helper, "get"}, env: env}, nil
}

// askHelper asks a helper, as Docker does, for the login of a repository's registry.
func askHelper(ctx context.Context, p *program, repository string) (answer, error) {
	host := registryOf(repository)
	server := host
	if parsePattern(host).host == dockerHub {
		server = "https://index.docker.io/v1/"
	}
	a := answer{key: byRegistry, life: helperLife}
	output, err := p.run(ctx, []byte(server+"\n"))
	if err != nil {
		if strings.Contains(string(output), notFound) {
			return a, nil
		}
		return a, err
	}
	login, err := decodeHelper(output)
	if err != nil {
		return a, fmt.Errorf("run %s: %w", p.argv[0], err)
	}
	a.auth = map[string]authn.AuthConfig{host: login}
	return a, nil
}

// decodeHelper reads the output of a helper.
func decodeHelper(output []byte) (login authn.AuthConfig, err error) {
	var said struct{ Username, Secret string }
	if json.Unmarshal(output, &said) != nil { // its error may quote the output
		return login, errors.New("its output is not JSON with Username and Secret")
	}
	if said.Username == tokenUser {
		return authn.AuthConfig{IdentityToken: said.Secret}, nil
	}
	return authn.AuthConfig{Username: said.Username, Password: said.Secret}, nil
}
