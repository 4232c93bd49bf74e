package blobs

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"lighter/hub/catalog"
)

const (
	// batchSize bounds the digests that are locked and deleted together. Clients that look for one
	// of them wait for the whole batch, and half of Collector.Lease has to suffice for it.
	batchSize = 50
	// batchesAtOnce bounds the batches that are deleted at a time.
	batchesAtOnce = 4
)

// unneeded is what a run deletes of a blob or manifest, unless a client relies on it.
type unneeded struct {
	digest   string
	links    []string                 // to it, of one repository
	upstream *catalog.RepositoryLayer // where the repository's clients get it from instead, or nil
	stored   *int64                   // if its bytes are deleted: the field of the result that counts it
	size     int64                    // of its bytes, if they are deleted
}

var errBatch = errors.New("a batch could not be deleted")

// delete deletes what find passes to found, in batches. find passes each digest once.
func (r *run) delete(ctx context.Context, find func(found func(unneeded) error) error) error {
	// If a batch fails, the others go on: the storage may carry out a request that was interrupted
	// after the blobs are unlocked.
	var group errgroup.Group
	group.SetLimit(batchesAtOnce)
	var failed atomic.Bool
	var batch []unneeded
	begin := func() {
		full := batch
		batch = nil
		group.Go(func() error {
			err := r.deleteBatch(ctx, full)
			if err != nil {
				failed.Store(true)
			}
			return err
		})
	}
	findErr := find(func(one unneeded) error {
		if batch = append(batch, one); len(batch) == batchSize {
			begin()
		}
		if failed.Load() {
			return errBatch
		}
		return nil
	})
	if findErr == nil && len(batch) > 0 {
		begin()
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return findErr
}

// deleteBatch deletes those of a batch on which no client relies, and counts them. In a dry run it
// only counts them.
func (r *run) deleteBatch(ctx context.Context, batch []unneeded) error {
	digests := make([]string, len(batch))
	for i, one := range batch {
		digests[i] = one.digest
	}
	if r.dry {
		unused, err := r.config.Catalog.Blobs.Unused(ctx, digests, r.before)
		if err == nil {
			r.count(only(batch, unused))
		}
		return err
	}
	d, err := r.config.Catalog.Blobs.BeginAll(ctx, digests, r.before, r.Lease)
	if err != nil || len(d.Digests()) == 0 {
		return err
	}
	batch = only(batch, d.Digests())
	err = r.config.Catalog.Blobs.Delete(ctx, d, func(ctx context.Context) error { return r.deleteLocked(ctx, batch) })
	if err == nil {
		r.count(batch)
	}
	return err
}

// only returns those of a batch that have one of the digests.
func only(batch []unneeded, digests []string) []unneeded {
	return slices.DeleteFunc(batch, func(one unneeded) bool { return !slices.Contains(digests, one.digest) })
}

// deleteLocked deletes a batch whose digests are locked.
func (r *run) deleteLocked(ctx context.Context, batch []unneeded) error {
	var links, stored []string
	var upstream []catalog.RepositoryLayer
	for _, one := range batch {
		links = append(links, one.links...)
		if one.upstream != nil {
			upstream = append(upstream, *one.upstream)
		}
		if one.stored != nil {
			stored = append(stored, one.digest)
		}
	}
	if err := r.config.Registry.Unlink(ctx, links); err != nil {
		return err
	}
	if err := r.config.Catalog.Blobs.RemoveUpstreams(ctx, upstream); err != nil {
		return err
	}
	return r.config.Registry.Drop(ctx, stored...)
}

// count counts what was deleted.
func (r *run) count(deleted []unneeded) {
	r.counting.Lock()
	defer r.counting.Unlock()
	for _, one := range deleted {
		if len(one.links) > 0 {
			r.result.Links++
		}
		if one.stored != nil {
			*one.stored++
			r.result.Bytes += one.size
		}
	}
}
