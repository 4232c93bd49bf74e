package wishlist

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"lighter/hub/pull"
	"lighter/hub/repositories"
	"lighter/sleep"
	"lighter/wire/pattern"
)

// parseRegistry parses HOST[:PORT][/PREFIX].
func parseRegistry(text string) (host, prefix string, err error) {
	host, prefix, _ = strings.Cut(strings.TrimSuffix(text, "/"), "/")
	repository := host + "/x"
	if prefix != "" {
		repository = host + "/" + prefix
	}
	switch parsed, isRepository := repositoryOf(repository); {
	case strings.HasPrefix(parsed, dockerHub+"/") || slices.Contains(dockerHubs, host):
		return "", "", errors.New("registries: Docker Hub does not list its repositories: name them, " +
			"as docker.io/library/python:3.*")
	case !isRepository:
		return "", "", fmt.Errorf("registries: %q: want HOST[:PORT] or HOST[:PORT]/PREFIX", short(text))
	}
	return host, prefix, nil
}

// repositoryOf returns HOST[:PORT]/PATH in containerd's form, and whether the text is just that: it
// has a host, and no tag or digest.
func repositoryOf(text string) (repository string, isRepository bool) {
	ref, _, err := pull.ParseSource("docker://" + text)
	if err != nil {
		return "", false
	}
	return pull.RepositoryOf(ref), pull.RepositoryOf(ref) == text
}

// wantsRepository reports whether a repository of a registry, without the host, is wanted.
func (l List) wantsRepository(name string) bool {
	matches := func(p string) bool { return pattern.Match(p, name) }
	return (len(l.Repositories) == 0 || slices.ContainsFunc(l.Repositories, matches)) &&
		!slices.ContainsFunc(l.ExcludeRepositories, matches)
}

// wantsTag reports whether a tag of a registry is wanted.
func (l List) wantsTag(tag string) bool {
	matches := func(p string) bool { return matchTag(p, tag) }
	return (len(l.Tags) == 0 || slices.ContainsFunc(l.Tags, matches)) && !slices.ContainsFunc(l.ExcludeTags, matches)
}

// errFindTimeout ends the search for repositories.
var errFindTimeout = fmt.Errorf("the repositories were not found within %v", findTimeout)

// findRepositories adds a line for each wanted repository of the list's registries.
func (p *pass) findRepositories(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, findTimeout, errFindTimeout)
	defer cancel()
	for i, text := range p.list.Registries {
		p.find(ctx, lineOf{Line: Line{N: int64(i + 1), Text: text, PlainHTTP: p.list.PlainHTTP}, of: "registries"})
	}
}

// find adds a line for each wanted repository of a registry.
func (p *pass) find(ctx context.Context, registry lineOf) {
	host, prefix, err := parseRegistry(registry.Text)
	if err != nil {
		p.lack(registry, err)
		return
	}
	search := repositories.New(host, prefix, func(ctx context.Context, scope string) (*http.Client, error) {
		return p.config.Login(ctx, host, scope, p.list.PlainHTTP)
	})
	step := p.progress.Step("find", registry.Text, 0)
	seen := map[string]bool{}
	for rests, lacks := 0, 0; search.More(); {
		names, err := search.Next(ctx)
		switch {
		case ctx.Err() != nil:
			p.lack(registry, context.Cause(ctx))
			return
		case isLater(err) && rests < maxRests:
			rests++
			sleep.For(ctx, p.Rest)
			continue
		case err != nil:
			p.lack(registry, err)
			search.Skip()
			if lacks++; lacks == maxFailures && search.More() {
				p.lack(registry, fmt.Errorf("%d of its lists could not be read, one after the other: the rest is "+
					"not tried", lacks))
				return
			}
			continue
		}
		rests, lacks = 0, 0
		for _, name := range names {
			if !seen[name] && !p.found(registry, host, name) {
				return
			}
			seen[name] = true
		}
		step.Add(len(names))
	}
}

// found adds a line for a repository of a registry. It returns false if there are too many.
func (p *pass) found(registry lineOf, host, name string) bool {
	if !p.list.wantsRepository(name) {
		return true
	}
	l := registry
	l.Text, l.Tag, l.found = host+"/"+name, "*", true
	repository, ok := repositoryOf(l.Text)
	switch {
	case !ok:
		p.fail(l, errors.New("the registry lists it, but this is no name of a repository"))
		return true
	case p.result.Found == maxFound:
		p.lack(registry, fmt.Errorf("more than %d repositories are wanted: the rest is not done", maxFound))
		return false
	}
	l.Repository = repository
	p.result.Found++
	p.lines = append(p.lines, l)
	return true
}
