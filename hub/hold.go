package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lighter/hub/catalog"
)

// WhileHeld calls fn while the processes of a hub delete no objects of any domain, whether they run
// or not. So fn can copy the catalog and the bucket with the tools of these, the catalog first. If
// that right is lost, the context of fn ends and WhileHeld returns an error: the copy may lack
// objects.
func WhileHeld(ctx context.Context, c Config, fn func(ctx context.Context) error) error {
	names := c.domainNames()
	if c.Catalog == "" { // the configuration may name the directory and not its domains
		found, err := domainsIn(c.Root)
		if err != nil {
			return fmt.Errorf("hold the objects of %s: %w", c.Root, err)
		}
		names = append(names, found...)
		slices.Sort(names)
		names = slices.Compact(names)
	}
	for _, name := range names {
		inner := fn
		fn = func(ctx context.Context) error { return c.whileDomainHeld(ctx, name, inner) }
	}
	return fn(ctx)
}

// whileDomainHeld is WhileHeld for one domain.
func (c *Config) whileDomainHeld(ctx context.Context, name string, fn func(ctx context.Context) error) (err error) {
	of, err := c.ofDomain(name)
	if err != nil {
		return err
	}
	opened, err := catalog.AttachAt(ctx, of.catalogPlace(name))
	if err != nil {
		return fmt.Errorf("hold the objects of domain %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	return whileHeld(ctx, opened, fn)
}
