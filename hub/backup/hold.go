package backup

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"lighter/hub/catalog"
	"lighter/sleep"
)

// lease bounds how long the hold of a backup that was killed lasts.
const lease = 2 * time.Minute

// WhileHeld calls fn while the hub deletes no objects of any domain, whether the hub runs or not.
// catalogs has the places of the catalogs of all domains (hub.Config.Catalogs). fn can copy first
// the catalogs and then the bucket with any tools. If a hold is lost, the context of fn ends and
// WhileHeld returns an error: the copy may lack objects.
func WhileHeld(ctx context.Context, catalogs map[string]catalog.Place, fn func(ctx context.Context) error) error {
	for _, domain := range slices.Sorted(maps.Keys(catalogs)) {
		inner := fn
		fn = func(ctx context.Context) error { return whileDomainHeld(ctx, domain, catalogs[domain], inner) }
	}
	return fn(ctx)
}

// whileDomainHeld is WhileHeld for one domain.
func whileDomainHeld(
	ctx context.Context, domain string, p catalog.Place, fn func(ctx context.Context) error,
) (err error) {
	c, err := catalog.AttachAt(ctx, p)
	if err != nil {
		return fmt.Errorf("hold the objects of domain %s: %w", domain, err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return whileHeld(ctx, c, fn)
}

// whileHeld calls fn while the hub deletes no objects of the catalog's domain. If the hold is lost,
// the context of fn ends and whileHeld returns an error.
func whileHeld(ctx context.Context, c *catalog.Catalog, fn func(ctx context.Context) error) error {
	owner := rand.Text()
	if err := c.Claims.Hold(ctx, owner, lease); err != nil {
		return err
	}
	extend := func(ctx context.Context) error {
		err := c.Claims.ExtendHold(ctx, owner, lease)
		if errors.Is(err, catalog.ErrLost) {
			err = fmt.Errorf("the hub may have deleted objects meanwhile, try again: %w", err)
		}
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sleep.For(ctx, lease/6) {
			if err := extend(ctx); errors.Is(err, catalog.ErrLost) {
				cancel(err)
				return
			}
		}
	}()
	err := fn(ctx)
	if err == nil { // fails if the hold was lost before fn ended
		err = extend(ctx)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(nil)
	<-done
	return errors.Join(err, c.Claims.EndHold(context.WithoutCancel(ctx), owner))
}
