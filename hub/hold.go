package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"lighter/hub/catalog"
)

// WhileHeld calls fn while the processes of a hub delete no objects, whether they run or not. So fn can
// copy the catalog and the bucket with the tools of these, the catalog first. If that right is lost,
// the context of fn ends and WhileHeld returns an error: the copy may lack objects.
func WhileHeld(ctx context.Context, c Config, fn func(ctx context.Context) error) (err error) {
	opened, err := catalog.Attach(ctx, cmp.Or(c.Catalog, catalogFile(c.Root)))
	if err != nil {
		return fmt.Errorf("hold the hub's objects: %w", err)
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	return whileHeld(ctx, opened, fn)
}
