package registries

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
)

const (
	// pluginVersion is the version of the kubelet's protocol for credential provider plugins.
	pluginVersion = "credentialprovider.kubelet.k8s.io/v1"
	// longestAnswer bounds the time for which a plugin's answer is used.
	longestAnswer = 24 * time.Hour
	// maxLogins bounds the logins of one answer.
	maxLogins = 1000
)

type pluginRequest struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Image      string `json:"image"`
}

type pluginResponse struct {
	APIVersion    string  `json:"apiVersion"`
	Kind          string  `json:"kind"`
	CacheKeyType  string  `json:"cacheKeyType"`
	CacheDuration *string `json:"cacheDuration"`
	Auth          map[string]struct {
		Username string `json:"username"`
		Password string `json:"password"`
	} `json:"auth"`
}

// askPlugin asks a plugin, as the kubelet does, for logins that a repository may need. life is for
// answers that do not say how long they may be used.
func askPlugin(ctx context.Context, p *program, life time.Duration, repository string) (answer, error) {
	request, err := json.Marshal(pluginRequest{pluginVersion, "CredentialProviderRequest", repository})
	if err != nil {
		return answer{}, err
	}
	output, err := p.run(ctx, request)
	if err != nil {
		return answer{}, err
	}
	a, err := decodePlugin(output, life)
	if err != nil {
		err = fmt.Errorf("run %s: %w", p.argv[0], err)
	}
	return a, err
}

// decodePlugin reads the output of a plugin. Errors do not quote the output.
func decodePlugin(output []byte, life time.Duration) (a answer, err error) {
	var r pluginResponse
	if json.Unmarshal(output, &r) != nil || r.Kind != "CredentialProviderResponse" {
		return a, errors.New("its output is no CredentialProviderResponse")
	}
	if r.APIVersion != pluginVersion {
		return a, errors.New("its output has another apiVersion than " + pluginVersion)
	}
	switch r.CacheKeyType {
	case "Image":
		a.key = byRepository
	case "Registry":
		a.key = byRegistry
	case "Global":
		a.key = global
	default:
		return a, errors.New("its cacheKeyType is none of Image, Registry and Global")
	}
	a.life = life
	if r.CacheDuration != nil {
		if a.life, err = time.ParseDuration(*r.CacheDuration); err != nil || a.life < 0 {
			return a, errors.New("its cacheDuration is no duration such as 6h0m0s")
		}
	}
	a.life = min(a.life, longestAnswer)
	if len(r.Auth) > maxLogins {
		return a, fmt.Errorf("it gives more than %d logins", maxLogins)
	}
	a.auth = map[string]authn.AuthConfig{}
	for place, login := range r.Auth {
		a.auth[place] = authn.AuthConfig{Username: login.Username, Password: login.Password}
	}
	return a, nil
}
