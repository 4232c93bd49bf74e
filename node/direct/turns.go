package direct

import (
	"context"
	"fmt"
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/semaphore"

	"lighter/store/repository"
)

const (
	// makesAtOnce is how many trees are made at a time. Each is in memory, with the tables of its
	// layers: some 100 MB for large images, 512 MiB at most for each of tablesAtOnce tables.
	makesAtOnce = 3
	// makesOfRegistry is how many of them are of one registry: one that hangs leaves a turn to
	// others.
	makesOfRegistry = 2
	// maxRegistries bounds the registries whose trees are counted.
	maxRegistries = 1024
)

// turns are the turns of the trees that are made. A tree keeps its turn while its tables arrive.
type turns struct {
	all *semaphore.Weighted
	of  *lru.Cache[string, *semaphore.Weighted] // by the registry's HOST[:PORT]
}

func newTurns() (*turns, error) {
	of, err := lru.New[string, *semaphore.Weighted](maxRegistries)
	return &turns{semaphore.NewWeighted(makesAtOnce), of}, err
}

// wait waits for the turn of an image of a repository, and returns what ends it.
func (t *turns) wait(ctx context.Context, from *repository.Repository) (end func(), err error) {
	registry, _, _ := strings.Cut(from.String(), "/")
	of := semaphore.NewWeighted(makesOfRegistry)
	if known, found, _ := t.of.PeekOrAdd(registry, of); found {
		of = known
	}
	if err = of.Acquire(ctx, 1); err == nil {
		if err = t.all.Acquire(ctx, 1); err != nil {
			of.Release(1)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("wait until other images are read: %w", context.Cause(ctx))
	}
	return func() { t.all.Release(1); of.Release(1) }, nil
}
