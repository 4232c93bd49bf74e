// Package imagecache manages the chunk cache by image: administrators pin, unpin, fetch and evict
// the chunks of an image, and verify the cache. They name an image by a word: its reference, or
// another name that package report accepts (Images).
package imagecache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/time/rate"

	"lighter/format/chunk"
	"lighter/node/completion"
	"lighter/node/trees"
	"lighter/sleep"
	"lighter/store/disk"
)

// scrubPause is the pause between two background scrubs.
const scrubPause = time.Hour

// Status is the state of the cache.
type Status struct {
	disk.Stats
	Pins []disk.Pin `json:"pins"`
}

// Freed is the result of an eviction, and the state of the cache after it.
type Freed struct {
	disk.Freed
	Status
}

// Scrubbed is the result of a scrub, and the state of the cache after it.
type Scrubbed struct {
	Found disk.Scrubbed `json:"found"`
	Files int           `json:"damagedFiles"` // number of damaged metadata images and local devices
	Status
}

// Finder finds the tree of an image by what a user calls it: a reference, chainID or tree ID, or a
// part of one.
type Finder interface {
	// FindTree returns the tree of the image that a word names, and the image's name.
	FindTree(ctx context.Context, word string) (tree chunk.ID, label string, err error)
	// FindPin returns the tree of the pin that a word names. A pin may outlive its image.
	FindPin(ctx context.Context, word string, pins []disk.Pin) (chunk.ID, error)
}

// Cache is the chunk cache, by image. It is safe for concurrent use.
type Cache struct {
	chunks  *disk.Cache
	trees   *trees.Store
	images  Finder
	fetcher *completion.Completer
	log     *slog.Logger
}

// New returns the cache by image.
func New(
	chunks *disk.Cache, store *trees.Store, images Finder, fetcher *completion.Completer, log *slog.Logger,
) *Cache {
	return &Cache{chunks: chunks, trees: store, images: images, fetcher: fetcher, log: log}
}

// Status returns the state of the cache.
func (c *Cache) Status() Status { return Status{c.chunks.Stats(), c.chunks.Pins()} }

// Pin keeps the chunks of an image in the cache: those that are cached, and those that arrive
// later.
func (c *Cache) Pin(ctx context.Context, image string) error {
	tree, label, err := c.images.FindTree(ctx, image)
	if err != nil {
		return err
	}
	set, err := c.chunksOf(ctx, tree)
	if err != nil {
		return err
	}
	if err := c.chunks.Pin(tree, label, set); err != nil {
		return fmt.Errorf("pin %s: %w", image, err)
	}
	return nil
}

// Unpin undoes Pin, even if the image was removed in the meantime.
func (c *Cache) Unpin(ctx context.Context, image string) error {
	tree, err := c.images.FindPin(ctx, image, c.chunks.Pins())
	if err != nil {
		return err
	}
	_, err = c.chunks.Unpin(tree)
	return err
}

// Fetch fetches all chunks of an image into the cache, and reports its progress.
func (c *Cache) Fetch(ctx context.Context, image string, report func(completion.Progress)) error {
	tree, _, err := c.images.FindTree(ctx, image)
	if err != nil {
		return err
	}
	if err := c.fetcher.Fetch(ctx, tree, report); err != nil {
		return fmt.Errorf("fetch %s: %w", image, err)
	}
	return nil
}

// Evict evicts the chunks of an image that no other image on this machine has, and removes its
// local device if no mount reads it.
func (c *Cache) Evict(ctx context.Context, image string) (Freed, error) {
	tree, _, err := c.images.FindTree(ctx, image)
	if err != nil {
		return Freed{}, err
	}
	set, err := c.chunksOf(ctx, tree)
	if err != nil {
		return Freed{}, err
	}
	trees, err := c.trees.List()
	if err != nil {
		return Freed{}, err
	}
	for _, other := range trees {
		if other == tree {
			continue
		}
		err := c.trees.Chunks(ctx, other, func(ref chunk.Ref) { set.Remove(ref.ID) })
		if err != nil && c.trees.Has(other) {
			return Freed{}, fmt.Errorf("find out which chunks only %s has: %w", image, err)
		}
	}
	freed := c.chunks.Evict(set)
	freed.Bytes += c.trees.DropLocal(tree)
	return Freed{freed, c.Status()}, nil
}

// Prune evicts all chunks that are not pinned.
func (c *Cache) Prune() Freed {
	freed := c.chunks.Prune()
	return Freed{freed, c.Status()}
}

// Scrub verifies the cached chunks, the metadata images of served trees, and all local devices.
func (c *Cache) Scrub(ctx context.Context) (Scrubbed, error) {
	found, err := c.chunks.Scrub(ctx, rate.Inf)
	files, failed := c.trees.Scrub(ctx, 0)
	return Scrubbed{found, files, c.Status()}, errors.Join(err, failed)
}

// Run scrubs again and again, at bytesPerSecond, until ctx is done. If bytesPerSecond is 0, it does
// nothing.
func (c *Cache) Run(ctx context.Context, bytesPerSecond int64) {
	for bytesPerSecond > 0 && ctx.Err() == nil {
		if found, err := c.chunks.Scrub(ctx, rate.Limit(bytesPerSecond)); err == nil {
			c.log.Info("verified the cache", "bytes", found.Bytes, "damaged", found.Damaged)
		} else if ctx.Err() == nil {
			c.log.Warn("cannot verify all of the cache", "bytes", found.Bytes, "err", err)
		}
		if _, err := c.trees.Scrub(ctx, bytesPerSecond); err != nil {
			return
		}
		sleep.For(ctx, scrubPause)
	}
}

func (c *Cache) chunksOf(ctx context.Context, tree chunk.ID) (*disk.Set, error) {
	set := &disk.Set{}
	err := c.trees.Chunks(ctx, tree, set.Add)
	return set, err
}
