package hooks

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"lighter/wire"
	"lighter/wire/pattern"
)

// Hook is a part of the hub's configuration: a sender of webhooks.
type Hook struct {
	Name            string   `toml:"name" comment:"Name of the hook: lower-case letters, digits and hyphens. Its URL is /hooks/NAME."`
	Kind            string   `toml:"kind" comment:"What sends the events: harbor (both of its formats), distribution (both envelopes), gitlab (its registry's notifications, or pipelines and jobs), dockerhub, or plain: {\"repository\": \"team/app\", \"tag\": \"1\"}, or a list of these."`
	Registry        string   `toml:"registry" comment:"HOST[:PORT] of the registry that has the images. The hub connects to no other one, whatever an event says."`
	Repositories    []string `toml:"repositories" comment:"Patterns of names without tag, as lighter images shows them: registry.example.org/team/**. Events about other images have no effect. Empty: all images of the registry."`
	SecretFile      string   `toml:"secret_file" comment:"File with one line, the secret that the sender knows. It is in the header Authorization, also after Bearer; of gitlab, in X-Gitlab-Token; of dockerhub, in the URL: ?token=SECRET. Only the hub's user and group may have access to the file. A changed file is read again."`
	SignatureHeader string   `toml:"signature_header" comment:"If set, the sender does not send the secret: this header has the HMAC-SHA256 of the body, in hexadecimal."`
	SignaturePrefix string   `toml:"signature_prefix" comment:"What precedes the signature in its header: sha256=."`
	MayDelete       bool     `toml:"may_delete" comment:"Events of deletions have an effect: if the registry does not have the image any more, and nobody else wants it, the hub removes it."`
	Platforms       []string `toml:"platforms" comment:"Platforms of the images that are ingested: OS/ARCH. Empty: those of the hub's configuration."`
}

// Kinds of hooks.
const (
	kindHarbor       = "harbor"
	kindDistribution = "distribution"
	kindGitLab       = "gitlab"
	kindDockerHub    = "dockerhub"
	kindPlain        = "plain"
)

var decoders = map[string]func([]byte) ([]event, error){
	kindHarbor: decodeHarbor, kindDistribution: decodeDistribution, kindGitLab: decodeGitLab,
	kindDockerHub: decodeDockerHub, kindPlain: decodePlain,
}

// maxHooks bounds the hooks of a hub.
const maxHooks = 256

// Check returns an error if a hook is invalid. The error has one line.
func Check(hooks []Hook) error {
	if len(hooks) > maxHooks {
		return fmt.Errorf("there are %d tables [[hook]]: want %d at most", len(hooks), maxHooks)
	}
	for i, h := range hooks {
		if err := wire.CheckDomain(h.Name); err != nil { // the same form
			return fmt.Errorf("hook %d: name %q: want 1 to 32 lower-case letters, digits and hyphens", i+1, h.Name)
		}
		if slices.ContainsFunc(hooks[:i], func(other Hook) bool { return other.Name == h.Name }) {
			return fmt.Errorf("hook %q is configured twice", h.Name)
		}
		if err := h.check(); err != nil {
			return fmt.Errorf("hook %q: %w", h.Name, err)
		}
	}
	return nil
}

func (h *Hook) check() error {
	if decoders[h.Kind] == nil {
		return fmt.Errorf("kind %q: want harbor, distribution, gitlab, dockerhub or plain", h.Kind)
	}
	named, err := reference.ParseNormalizedNamed(h.Registry + "/a/b")
	if err != nil || reference.Domain(named) != h.Registry {
		return fmt.Errorf("registry %q: want HOST or HOST:PORT in lower case; Docker Hub is docker.io", h.Registry)
	}
	if h.SecretFile == "" {
		return errors.New("secret_file is empty: everybody who reaches the hub could send events")
	}
	if strings.ContainsAny(h.SignatureHeader, " \t:\r\n") {
		return fmt.Errorf("signature_header %q: want the name of a header", h.SignatureHeader)
	}
	for _, p := range h.Repositories {
		if err := pattern.Check(p); err != nil {
			return fmt.Errorf("repositories: %w", err)
		}
	}
	for _, p := range h.Platforms {
		if err := wire.CheckPlatform(p); err != nil {
			return fmt.Errorf("platforms: %w", err)
		}
	}
	return nil
}

// secrets returns what a request gives as the shared secret, in the ways of the hook's kind.
func (h *Hook) secrets(req *http.Request) (given []string) {
	if h.Kind == kindDockerHub {
		return []string{req.URL.Query().Get("token")}
	}
	if h.Kind == kindGitLab {
		given = append(given, req.Header.Get("X-Gitlab-Token"))
	}
	authorization := req.Header.Get("Authorization")
	given = append(given, authorization)
	if scheme, token, ok := strings.Cut(authorization, " "); ok && strings.EqualFold(scheme, "Bearer") {
		given = append(given, token)
	}
	return given
}

// named returns the name in the hub of a repository of the hook's registry, without a tag. The host
// is always the hook's: a repository that names another one is invalid.
func (h *Hook) named(repository string) (string, error) {
	named, err := reference.ParseNormalizedNamed(h.Registry + "/" + repository)
	if err != nil {
		return "", err
	}
	if reference.Domain(named) != h.Registry || !reference.IsNameOnly(named) {
		return "", fmt.Errorf("%q is no repository", repository)
	}
	return named.Name(), nil
}

// wants reports whether events about a repository have an effect.
func (h *Hook) wants(name string) bool {
	return len(h.Repositories) == 0 ||
		slices.ContainsFunc(h.Repositories, func(p string) bool { return pattern.Match(p, name) })
}
