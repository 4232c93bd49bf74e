package registries

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/semaphore"
)

const (
	// maxAnswers bounds the answers of a program that are kept.
	maxAnswers = 256
	// youngest is how old an answer is at least before the program is asked again, because a
	// registry has refused it, or because it is an error.
	youngest = 10 * time.Second
)

// answer is what a program says about logins.
type answer struct {
	// auth has logins by HOST[:PORT][/PATH], where HOST may be a pattern.
	auth map[string]authn.AuthConfig
	// key returns for which repositories the answer is kept: those with the same key.
	key  func(repository string) string
	life time.Duration // for which it is kept; 0: not at all
}

// Keys of answers: for a repository, for a registry, and for all that the program is asked about.
func byRepository(repository string) string { return repository }
func byRegistry(repository string) string   { return registryOf(repository) }
func global(string) string                  { return "" }

// registryOf returns the HOST[:PORT] of HOST[:PORT]/PATH.
func registryOf(repository string) string {
	host, _, _ := strings.Cut(repository, "/")
	return host
}

// asked has the logins that a program gives. It runs the program once at a time, and keeps the
// answers for as long as they may be used.
type asked struct {
	ask     func(ctx context.Context, repository string) (answer, error)
	turn    *semaphore.Weighted
	answers *lru.Cache[string, kept]
}

// kept is an answer, or an error, with its times.
type kept struct {
	answer
	err        error
	got, until time.Time
}

func newAsked(ask func(ctx context.Context, repository string) (answer, error)) *asked {
	answers, _ := lru.New[string, kept](maxAnswers) // it fails for sizes below 1
	return &asked{ask: ask, turn: semaphore.NewWeighted(1), answers: answers}
}

func (a *asked) credentials(ctx context.Context, repository string, afresh bool) (credentials, error) {
	if k, ok := a.find(repository, afresh); ok {
		return k.pick(repository)
	}
	if err := a.turn.Acquire(ctx, 1); err != nil {
		return credentials{}, err
	}
	defer a.turn.Release(1)
	if k, ok := a.find(repository, afresh); ok { // another caller's
		return k.pick(repository)
	}
	k := kept{got: time.Now()}
	if k.answer, k.err = a.ask(ctx, repository); k.err != nil {
		if ctx.Err() == nil {
			k.until = time.Now().Add(youngest)
			a.answers.Add(repository, k)
		}
		return credentials{}, k.err
	}
	if k.life > 0 {
		k.until = k.got.Add(k.life)
		a.answers.Add(k.key(repository), k)
	}
	return k.pick(repository)
}

// find returns the answer that is kept for a repository.
func (a *asked) find(repository string, afresh bool) (kept, bool) {
	now := time.Now()
	for _, key := range []string{byRepository(repository), byRegistry(repository), global(repository)} {
		k, ok := a.answers.Get(key)
		if ok && now.Before(k.until) && !(afresh && k.err == nil && now.Sub(k.got) > youngest) {
			return k, true
		}
	}
	return kept{}, false
}

// pick returns the login for a repository: the one with the longest path, and of these the one with
// the most specific host.
func (k kept) pick(repository string) (credentials, error) {
	if k.err != nil {
		return credentials{}, k.err
	}
	host, path, _ := strings.Cut(repository, "/")
	at := parsePattern(host)
	c := credentials{until: k.until}
	var best pattern
	bestPath := -1
	for _, key := range slices.Sorted(maps.Keys(k.auth)) { // of equal ones, the first counts
		keyHost, keyPath, _ := strings.Cut(loginPlace(key), "/")
		p := parsePattern(keyHost)
		if !p.valid() || !p.matches(at) || keyPath != "" && !covers(keyPath, path) {
			continue
		}
		if len(keyPath) > bestPath || len(keyPath) == bestPath && p.compare(best) < 0 {
			c.AuthConfig, best, bestPath = k.auth[key], p, len(keyPath)
		}
	}
	return c, nil
}
