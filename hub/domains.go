package hub

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"lighter/hub/catalog"
	"lighter/hub/quota"
	"lighter/hub/report"
	"lighter/hub/rootdir"
	"lighter/hub/wishlist"
	"lighter/wire"
	"lighter/wire/pattern"
)

// Domain is a part of the configuration: a set of repositories whose images the hub keeps apart
// from all others.
type Domain struct {
	Name         string   `toml:"name" comment:"Name of the domain, as it is in URLs (lighter --domain, a node's domain): lower-case letters, digits and hyphens."`
	Repositories []string `toml:"repositories" comment:"Patterns of names without tag, as lighter images shows them: registry.example.org/team/**. * is any part of a name without /, ** any number of parts."`
}

// maxDomains bounds the domains of a hub: each has background work and connections.
const maxDomains = 64

// checkDomains returns an error if the domains are invalid, or if patterns of two domains obviously
// match the same repositories. It does not find every overlap: a repository belongs to the first
// domain that matches.
func checkDomains(domains []Domain) error {
	if len(domains) > maxDomains {
		return fmt.Errorf("there are %d domains: want %d at most", len(domains), maxDomains)
	}
	for i, d := range domains {
		if err := wire.CheckDomain(d.Name); err != nil {
			return fmt.Errorf("domain %d: name: %w", i+1, err)
		}
		if d.Name == wire.DefaultDomain {
			return fmt.Errorf("domain %d: every hub has a domain %s, for images that belong to no other domain: "+
				"choose another name", i+1, d.Name)
		}
		if len(d.Repositories) == 0 {
			return fmt.Errorf("domain %q: repositories is empty: name some", d.Name)
		}
		for _, p := range d.Repositories {
			if err := pattern.Check(p); err != nil {
				return fmt.Errorf("domain %q: repositories: %w", d.Name, err)
			}
		}
		for _, before := range domains[:i] {
			if before.Name == d.Name {
				return fmt.Errorf("domain %q is configured twice", d.Name)
			}
			for _, p := range d.Repositories {
				for _, other := range before.Repositories {
					if pattern.Match(other, p) || pattern.Match(p, other) {
						return fmt.Errorf("a repository would belong to two domains, %q (%s) and %q (%s): "+
							"change a pattern", before.Name, other, d.Name, p)
					}
				}
			}
		}
	}
	return nil
}

// domainNames returns the names of all domains, the default one first.
func (c *Config) domainNames() []string {
	names := []string{wire.DefaultDomain}
	for _, d := range c.Domains {
		names = append(names, d.Name)
	}
	return names
}

// domainOf returns the name of the domain to which a repository belongs. repository is a path in
// the hub's registry.
func (c *Config) domainOf(repository string) string {
	name := wire.Ref{Repository: repository}.NamedRepository()
	for _, d := range c.Domains {
		if slices.ContainsFunc(d.Repositories, func(p string) bool { return pattern.Match(p, name) }) {
			return d.Name
		}
	}
	return wire.DefaultDomain
}

// belongs returns a function that returns an error if a repository does not belong to a domain.
func (c *Config) belongs(domain string) func(repository string) error {
	return func(repository string) error {
		if of := c.domainOf(repository); of != domain {
			return fmt.Errorf("%w: %s belongs to domain %q of this hub, not to %q: use --domain %s, or another name",
				report.ErrInvalid, wire.Ref{Repository: repository}.NamedRepository(), of, domain, of)
		}
		return nil
	}
}

// ofDomain returns the configuration with the places, quotas and wishlists of one domain.
func (c *Config) ofDomain(domain string) (Config, error) {
	of := *c
	of.Quota = slices.DeleteFunc(slices.Clone(c.Quota), func(q quota.Quota) bool {
		return q.DomainName() != domain
	})
	of.Wishlists = slices.DeleteFunc(slices.Clone(c.Wishlists), func(l wishlist.List) bool {
		return l.DomainName() != domain
	})
	if domain == wire.DefaultDomain {
		return of, nil
	}
	of.Root = rootdir.Domain(c.Root, domain)
	if c.Bucket == "" {
		return of, nil
	}
	u, err := url.Parse(c.Bucket)
	if err != nil {
		return of, errors.New("bucket is not a valid URL")
	}
	if u.Scheme == "file" {
		u.Path = rootdir.Domain(u.Path, domain)
	} else {
		query := u.Query()
		query.Set("prefix", query.Get("prefix")+"domains/"+domain+"/")
		u.RawQuery = query.Encode()
	}
	of.Bucket = u.String()
	return of, nil
}

// catalogPlace returns where the catalog of a domain is; c is the configuration of the domain.
func (c *Config) catalogPlace(domain string) catalog.Place {
	p := catalog.Place{Source: c.Catalog, Sharing: 1 + len(c.Domains)}
	if c.Catalog == "" {
		p.Source = rootdir.Catalog(c.Root)
	} else if domain != wire.DefaultDomain {
		p.Schema = "domain_" + strings.ReplaceAll(domain, "-", "_")
	}
	return p
}

// Catalogs returns the places of the catalogs of all domains, by domain. With SQLite, this includes
// domains that the hub's directory has and the configuration lacks.
func (c *Config) Catalogs() (map[string]catalog.Place, error) {
	names := c.domainNames()
	if c.Catalog == "" { // the configuration may lack domains that the directory has
		found, err := rootdir.Domains(c.Root)
		if err != nil {
			return nil, fmt.Errorf("find the domains of %s: %w", c.Root, err)
		}
		names = append(names, found...)
	}
	places := map[string]catalog.Place{}
	for _, name := range names {
		of, err := c.ofDomain(name)
		if err != nil {
			return nil, err
		}
		places[name] = of.catalogPlace(name)
	}
	return places, nil
}
