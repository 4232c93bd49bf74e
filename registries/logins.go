package registries

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"lighter/renewed"
)

// credentials are a login for a registry.
type credentials struct {
	authn.AuthConfig           // zero: no login
	until            time.Time // the login has to be got again then; zero: at each use of it
}

// provider has credentials for repositories, HOST[:PORT]/PATH. afresh says that those that it gave
// before were refused. Errors name no secrets.
type provider interface {
	credentials(ctx context.Context, repository string, afresh bool) (credentials, error)
}

// newProvider returns the provider that a table names, or nil. It fails if a file cannot be read or
// a program is missing.
func newProvider(r Registry, log *slog.Logger) (provider, error) {
	switch {
	case r.Logins != "":
		return openLogins(r.Logins, r.Env, log)
	case r.Helper != "":
		p, err := helperProgram(r.Helper, r.Env)
		if err == nil {
			_, err = exec.LookPath(p.argv[0])
		}
		if err != nil {
			return nil, fmt.Errorf("helper: %w", err)
		}
		return newAsked(func(ctx context.Context, repository string) (answer, error) {
			return askHelper(ctx, p, repository)
		}), nil
	case len(r.Plugin) > 0:
		if _, err := exec.LookPath(r.Plugin[0]); err != nil {
			return nil, fmt.Errorf("plugin: %w", err)
		}
		p, life := &program{argv: r.Plugin, env: r.Env}, time.Duration(r.PluginCacheMinutes)*time.Minute
		return newAsked(func(ctx context.Context, repository string) (answer, error) {
			return askPlugin(ctx, p, life, repository)
		}), nil
	case r.PasswordFile != "":
		return openSecret("password_file", r.PasswordFile, log, func(password string) authn.AuthConfig {
			return authn.AuthConfig{Username: r.Username, Password: password}
		})
	case r.TokenFile != "":
		return openSecret("token_file", r.TokenFile, log, func(token string) authn.AuthConfig {
			return authn.AuthConfig{RegistryToken: token}
		})
	}
	return nil, nil
}

// secretFile has a login whose secret is the only line of a file. A changed file is read again.
type secretFile struct {
	login *renewed.Value[authn.AuthConfig]
}

func openSecret(key, path string, log *slog.Logger, login func(secret string) authn.AuthConfig) (provider, error) {
	value, err := renewed.Read(log, func() (authn.AuthConfig, error) {
		b, err := os.ReadFile(path)
		secret := strings.TrimRight(string(b), "\r\n")
		if err == nil && (secret == "" || strings.ContainsAny(secret, "\r\n")) {
			err = fmt.Errorf("%s does not have exactly one line", path)
		}
		return login(secret), err
	}, path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return secretFile{value}, nil
}

func (s secretFile) credentials(ctx context.Context, _ string, _ bool) (credentials, error) {
	return credentials{AuthConfig: s.login.Get(ctx)}, nil
}

// fixed has the same login for all repositories.
type fixed struct{ login authn.AuthConfig }

func (f fixed) credentials(context.Context, string, bool) (credentials, error) {
	return credentials{AuthConfig: f.login}, nil
}

// logins are those of a file as Docker's config.json. A changed file is read again.
type logins struct {
	file    *renewed.Value[dockerConfig]
	env     []string // of helpers
	helpers *asked
}

// dockerConfig is what a file as Docker's config.json says about logins.
type dockerConfig struct {
	Auths       map[string]authn.AuthConfig `json:"auths"`
	CredHelpers map[string]string           `json:"credHelpers"` // names of helpers by registry
	CredsStore  string                      `json:"credsStore"`  // name of the helper for all others
}

func openLogins(path string, env []string, log *slog.Logger) (*logins, error) {
	file, err := renewed.Read(log, func() (dockerConfig, error) { return readDockerConfig(path) }, path)
	if err != nil {
		return nil, fmt.Errorf("logins: %w", err)
	}
	l := &logins{file: file, env: env}
	l.helpers = newAsked(l.ask)
	return l, nil
}

func readDockerConfig(path string) (c dockerConfig, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if json.Unmarshal(b, &c) != nil { // its error may quote the file
		return c, errors.New(path + " is not as Docker's config.json: want {\"auths\": {\"HOST\": {\"auth\": " +
			"\"BASE64 OF USER:PASSWORD\"}}}")
	}
	return c, nil
}

// credentials returns the login with the longest path. A helper is for a whole registry.
func (l *logins) credentials(ctx context.Context, repository string, afresh bool) (credentials, error) {
	c := l.file.Get(ctx)
	login, place := c.find(repository)
	isNone := login == authn.AuthConfig{}
	host := registryOf(repository)
	if helper := c.helperOf(host); helper != "" && (isNone || place == host) {
		return l.helpers.credentials(ctx, repository, afresh)
	}
	if isNone && c.CredsStore != "" {
		return l.helpers.credentials(ctx, repository, afresh)
	}
	return credentials{AuthConfig: login}, nil
}

// ask asks the helper for a repository.
func (l *logins) ask(ctx context.Context, repository string) (answer, error) {
	c := l.file.Get(ctx)
	name := cmp.Or(c.helperOf(registryOf(repository)), c.CredsStore)
	if strings.ContainsRune(name, '/') {
		return answer{}, fmt.Errorf("logins: credHelpers and credsStore: %q is no name of a helper", name)
	}
	p, err := helperProgram(name, l.env)
	if err != nil {
		return answer{}, fmt.Errorf("logins: %w", err)
	}
	return askHelper(ctx, p, repository)
}

// find returns the login of "auths" with the longest path for a repository, and its place. If
// several keys stand for that place, as docker.io and https://index.docker.io/v1/, it returns that
// of the first key with a login.
func (c dockerConfig) find(repository string) (login authn.AuthConfig, place string) {
	for _, key := range slices.Sorted(maps.Keys(c.Auths)) {
		at := loginPlace(key)
		if covers(at, repository) && (len(at) > len(place) || at == place && login == authn.AuthConfig{}) {
			login, place = c.Auths[key], at
		}
	}
	return login, place
}

// helperOf returns the name of the helper for a registry: that of the first key for it.
func (c dockerConfig) helperOf(host string) string {
	for _, key := range slices.Sorted(maps.Keys(c.CredHelpers)) {
		if loginPlace(key) == host {
			return c.CredHelpers[key]
		}
	}
	return ""
}

// loginPlace returns the HOST[:PORT][/PATH] that a key of "auths" or "credHelpers" is about. Docker
// Hub's key is https://index.docker.io/v1/.
func loginPlace(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key = strings.TrimSuffix(key, "/")
	host, path, _ := strings.Cut(key, "/")
	at := parsePattern(host)
	if at.host == dockerHub {
		host = dockerHub
	}
	if path == "" || path == "v1" || path == "v2" {
		return strings.ToLower(host)
	}
	return strings.ToLower(host) + "/" + path
}

// covers reports whether a HOST[:PORT][/PATH] is a repository or has it below.
func covers(place, repository string) bool {
	return repository == place || strings.HasPrefix(repository, place+"/")
}
