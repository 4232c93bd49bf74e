package hub

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"lighter/hub/catalog"
	"lighter/hub/images"
	"lighter/hub/jobs"
	"lighter/hub/pull"
	"lighter/hub/pullthrough"
	"lighter/hub/pushthrough"
	"lighter/hub/registries"
	"lighter/hub/registry"
	"lighter/hub/upstream"
)

// ruleOf returns the rule that says who may read a registry's repositories through the hub.
func ruleOf(r registries.Registry) pullthrough.Registry {
	return pullthrough.Registry{Host: r.Host, Readers: pullthrough.Readers(cmp.Or(r.Readers,
		string(pullthrough.Anyone))), Repositories: r.Repositories, TagSeconds: cmp.Or(r.TagSeconds, 60)}
}

func rulesOf(all []registries.Registry) (rules []pullthrough.Registry) {
	for _, r := range all {
		rules = append(rules, ruleOf(r))
	}
	return rules
}

// throughs returns the registries that clients read through the hub.
func (c *Config) throughs() (all []registries.Registry) {
	return slices.DeleteFunc(slices.Clone(c.Registries), func(r registries.Registry) bool { return !r.PullThrough })
}

// pushes returns the registries that clients push to through the hub.
func (c *Config) pushes() (all []registries.Registry) {
	return slices.DeleteFunc(slices.Clone(c.Registries), func(r registries.Registry) bool {
		return len(r.PushNames) == 0
	})
}

// checkThroughs returns an error if registries cannot be read, or pushed to, through the hub as
// configured.
func (c *Config) checkThroughs() error {
	both := slices.DeleteFunc(slices.Clone(c.Registries), func(r registries.Registry) bool {
		return !r.PullThrough && len(r.PushNames) == 0
	})
	if err := pullthrough.Check(rulesOf(both)); err != nil {
		return err
	}
	used := slices.Concat(c.DockerNames, c.RegistryHosts, c.Names)
	for _, r := range c.pushes() {
		for _, name := range r.PushNames {
			if host, _, _ := strings.Cut(name, ":"); host == "" || strings.ContainsAny(name, "/*[] ") {
				return fmt.Errorf("registry %s: push_names: %q: want HOST or HOST:PORT", r.Host, name)
			}
			if pullthrough.HasName(used, name) {
				return fmt.Errorf("registry %s: push_names: the hub has another use for the name %s: "+
					"take one that is only for pushes to this registry", r.Host, name)
			}
			used = append(used, name)
		}
	}
	return nil
}

const (
	// holdTime is how long a layer that was pushed through the hub waits for its manifest.
	holdTime = 15 * time.Minute
	// registryStall is how long a registry may take for the next piece of what is passed on.
	registryStall = 2 * time.Minute
)

// newPushThrough returns the service that passes pushes to other registries on.
func (h *Hub) newPushThrough(ctx context.Context) (*pushthrough.Service, error) {
	c := pushthrough.Config{Platforms: h.config.Platforms, Through: h.shared.through, Stall: registryStall,
		Log: h.log, DomainOf: func(repository string) *pushthrough.Domain {
			d := h.domainOf(repository)
			return &pushthrough.Domain{Uploads: d.pushes, Ingest: d.ingestPushed}
		}}
	for _, r := range h.config.pushes() {
		front, err := h.shared.registries.Front(r.Host)
		if err != nil {
			return nil, fmt.Errorf("registry %s: %w", r.Host, err)
		}
		one := pushthrough.Registry{Names: r.PushNames, Rule: ruleOf(r), Front: front}
		c.Registries = append(c.Registries, one)
	}
	return pushthrough.New(ctx, c), nil
}

// fronted lets the front of a registry answer requests for its names. The registry decides what its
// clients may do there.
func (h *Hub) fronted(next http.Handler) http.Handler {
	front := h.access.SameSite(h.shared.pushes)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if h.shared.pushes.IsFor(req) {
			front.ServeHTTP(w, req)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// settleTime is how long no blob of an image is read through the hub before the image's pull counts
// as ended.
const settleTime = 2 * time.Second

// newPullThrough returns the service that reads other registries on behalf of clients.
func (h *Hub) newPullThrough(ctx context.Context) *pullthrough.Service {
	return pullthrough.New(ctx, pullthrough.Config{
		Registries: rulesOf(h.config.throughs()), DockerNames: h.config.DockerNames,
		OwnHosts: h.config.RegistryHosts, Open: h.openThrough,
		DomainOf:        func(repository string) *pullthrough.Domain { return h.domainOf(repository).through },
		IsAdministrator: h.access.IsAdministrator, Settle: settleTime, Log: h.log})
}

// openThrough opens a repository of another registry for a client.
func (h *Hub) openThrough(ctx context.Context, repository string, login pullthrough.Login) (*pull.Source, error) {
	access := registries.Access{Own: login.Own, Anonymous: login.Anonymous(),
		Login: authn.AuthConfig{Username: login.Username, Password: login.Password}}
	return h.shared.registries.OpenRepository(ctx, repository, access)
}

// passed has what clients have just read through the hub.
type passed struct {
	*upstream.Reader
	through *pullthrough.Service
}

var _ pull.Memory = passed{}

// Manifest implements pull.Memory.
func (p passed) Manifest(repository, digest string) (registry.Manifest, bool) {
	return p.through.Recent(repository, digest)
}

// Blob implements pull.Memory.
func (p passed) Blob(ctx context.Context, repository, digest string) (io.ReadCloser, bool) {
	return p.Passed(ctx, repository, digest)
}

// domainOf returns the domain to which a path in the hub's registry belongs.
func (h *Hub) domainOf(repository string) *domain {
	name := h.config.domainOf(repository)
	return h.domains[slices.IndexFunc(h.domains, func(d *domain) bool { return d.name == name })]
}

// registryHandler returns the handler of the domain's registry.
func (d *domain) registryHandler() http.Handler {
	return d.uploads.Handler(d.registry.Handler(registryEvents{d.names, d.quotas}))
}

// ingestPulled queues an image that was pulled through the hub, unless the domain has it.
func (d *domain) ingestPulled(ctx context.Context, image pullthrough.Image) error {
	name := image.Repository + ":" + image.Tag
	if image.Tag == "" {
		name = image.Repository + "@" + image.Root
	}
	have, err := d.catalog.Images(ctx, name)
	if err != nil {
		return err
	}
	isIt := func(i catalog.Image) bool { return i.Digest == image.Manifest && i.Root == image.Root }
	if slices.ContainsFunc(have, isIt) {
		return nil
	}
	fetch := images.Fetch{Name: name, Root: image.Root, Priority: jobs.Low}
	if image.Platform != "" {
		fetch.Platforms = []string{image.Platform}
	}
	return d.ingestThrough(ctx, image.Repository, fetch, catalog.ByPullThrough)
}

// ingestPushed queues an image that was pushed to another registry through the hub.
func (d *domain) ingestPushed(ctx context.Context, image pullthrough.Image) error {
	fetch := images.Fetch{Name: image.Repository + ":" + image.Tag, Root: image.Root}
	return d.ingestThrough(ctx, image.Repository, fetch, catalog.ByPushThrough)
}

// ingestThrough queues an image of another registry, of which the hub has just passed on a part.
func (d *domain) ingestThrough(ctx context.Context, repository string, fetch images.Fetch, by string) error {
	from, err := d.upstream.Source(ctx, repository, false)
	if err != nil {
		return err
	}
	fetch.Source = "docker://" + fetch.Name
	if _, err := d.images.Queue(ctx, fetch, from); err != nil {
		return err
	}
	return d.catalog.Wants.Add(ctx, []catalog.Want{{Name: fetch.Name, By: by, Source: fetch.Source,
		Platforms: fetch.Platforms, ByRules: true}}, nil)
}
