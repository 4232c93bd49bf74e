// Package publish makes objects and the catalog's rows about them appear together, or not at all.
//
// A publication claims its objects in the catalog, stores them, and then the catalog commits. At
// the end the publication deletes the claimed objects that the catalog does not know, and releases
// the claim. If the process ends too early, its next start does this, or another process after the
// lease has ended. So no two publishers ever store or delete the same object at the same time.
// Delete works the same way, with a commit that makes the catalog forget objects.
//
// While a backup is being made, nothing is deleted. Package fsck later sweeps the objects that were
// left because of this, and the objects of a process that had lost its claim.
package publish

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/sleep"
)

const (
	defaultLease = 2 * time.Minute
	claimEvery   = 100 * time.Millisecond // while another publication has one of the objects
	sweepAtOnce  = 1000                   // objects that one claim of a sweep has at most
)

// Publisher publishes and deletes objects. It is safe for concurrent use.
type Publisher struct {
	// Lease is how long a publisher that has stopped keeps its claims. It is set before use.
	Lease time.Duration

	catalog *catalog.Catalog
	objects *objects.Store
	scratch string
	owner   string // the name of this process
	log     *slog.Logger
}

// New returns a publisher. scratch is the publisher's own directory. If the bucket is a directory,
// scratch is on the same file system. owner names this process: no other process has this name, and
// this one has it again after a restart.
func New(c *catalog.Catalog, o *objects.Store, scratch, owner string, log *slog.Logger) *Publisher {
	return &Publisher{Lease: defaultLease, catalog: c, objects: o, scratch: scratch, owner: owner, log: log}
}

// TempDir makes a directory for files that become objects. The caller removes it; Recover removes
// those that are left. kind is part of its name.
func (p *Publisher) TempDir(kind string) (string, error) {
	dir, err := os.MkdirTemp(p.scratch, kind+"-")
	if errors.Is(err, fs.ErrNotExist) { // somebody has deleted the scratch space
		if err = os.MkdirAll(p.scratch, 0o700); err == nil {
			dir, err = os.MkdirTemp(p.scratch, kind+"-")
		}
	}
	if err != nil {
		return "", fmt.Errorf("make a scratch directory: %w", err)
	}
	return dir, nil
}

// Objects are the objects of one publication. The files are synced to the disk.
type Objects struct {
	Staged   []objects.Staged
	Replaced []string // keys of objects to delete if the catalog does not know them afterwards
}

// Publish stores objects and calls commit, which makes the catalog know them. commit has to fail if
// the claim was lost. Afterwards Publish deletes the staged and replaced objects that the catalog
// does not know. If storing or commit has failed, these are the staged objects, otherwise the
// replaced ones. While another publication has claimed one of the objects, Publish waits.
func (p *Publisher) Publish(ctx context.Context, o Objects, commit func(catalog.Claim) error) error {
	keys := slices.Clone(o.Replaced)
	for _, f := range o.Staged {
		keys = append(keys, f.Key)
	}
	slices.Sort(keys)
	claim, err := p.claim(ctx, slices.Compact(keys))
	if err != nil {
		return err
	}
	err = p.whileClaimed(ctx, claim, func(ctx context.Context) error {
		if err := p.objects.Publish(ctx, o.Staged); err != nil {
			return err
		}
		return commit(claim)
	})
	cleaning, end := catalog.Outlast(ctx)
	defer end()
	cleanErr := p.clean(cleaning, claim)
	if errors.Is(cleanErr, catalog.ErrLost) {
		cleanErr = p.cleanAgain(cleaning, claim)
	}
	if cleanErr != nil && err == nil { // the claim expires, and is cleaned then
		p.log.Error("cannot delete unpublished objects", "err", cleanErr)
		return nil
	}
	return errors.Join(err, cleanErr)
}

// claim claims objects. While another publication has claimed one of them, it waits.
func (p *Publisher) claim(ctx context.Context, keys []string) (catalog.Claim, error) {
	claim := catalog.Claim{Owner: p.newOwner(), Keys: keys}
	for {
		err := p.catalog.Claims.Acquire(ctx, claim, p.Lease)
		if !errors.Is(err, catalog.ErrClaimed) {
			return claim, err
		}
		if !sleep.For(ctx, claimEvery) {
			return claim, context.Cause(ctx)
		}
	}
}

// cleanAgain cleans objects whose claim was lost. Another publisher has cleaned them, but perhaps
// before the last upload of this publisher had ended.
func (p *Publisher) cleanAgain(ctx context.Context, lost catalog.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, p.Lease)
	defer cancel()
	claim, err := p.claim(ctx, lost.Keys)
	if err != nil {
		return err
	}
	return p.clean(ctx, claim)
}

// newOwner returns a name of one claim.
func (p *Publisher) newOwner() string { return p.owner + "/" + rand.Text() }

// Delete calls forget, which makes the catalog forget objects, and deletes them, except those that
// the catalog knows for another reason.
func (p *Publisher) Delete(ctx context.Context, keys []string, forget func(catalog.Claim) error) error {
	return p.Publish(ctx, Objects{Replaced: keys}, forget)
}

// whileClaimed calls fn, and extends the claim meanwhile. The context of fn ends if the claim is
// lost, or could not be extended for most of its lease.
func (p *Publisher) whileClaimed(ctx context.Context, claim catalog.Claim, fn func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var extender sync.WaitGroup
	defer extender.Wait()
	defer cancel(nil)
	extender.Go(func() {
		extended := time.Now()
		for sleep.For(ctx, p.Lease/6) {
			begun := time.Now()
			err := p.catalog.Claims.Extend(ctx, claim, p.Lease)
			switch {
			case err == nil:
				extended = begun
			case errors.Is(err, catalog.ErrLost) || time.Since(extended) > p.Lease*5/6:
				cancel(fmt.Errorf("claim of objects: %w", err))
				return
			}
		}
	})
	err := fn(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// clean deletes the claimed objects that the catalog does not know, and releases the claim.
func (p *Publisher) clean(ctx context.Context, claim catalog.Claim) error {
	// Only the owner of a claim deletes. It stops before its lease ends.
	ctx, cancel := context.WithTimeout(ctx, p.Lease/2)
	defer cancel()
	if err := p.catalog.Claims.Extend(ctx, claim, p.Lease); err != nil {
		return err
	}
	var unknown []string
	held, err := p.catalog.Claims.IsHeld(ctx)
	if err != nil {
		return err
	}
	if held { // a backup needs what the catalog has just forgotten; package fsck sweeps it later
		return p.catalog.Claims.Release(ctx, claim)
	}
	for _, key := range claim.Keys {
		known, err := p.Knows(ctx, key)
		if err != nil {
			return err
		}
		if !known {
			unknown = append(unknown, key)
		}
	}
	if err := p.objects.Delete(ctx, unknown); err != nil {
		return err
	}
	return p.catalog.Claims.Release(ctx, claim)
}

// Knows reports whether the catalog names an object. A key of no known form counts as known, so
// that it is not deleted.
func (p *Publisher) Knows(ctx context.Context, key string) (bool, error) {
	kind, name, _ := strings.Cut(key, "/")
	id, err := chunk.ParseID(strings.TrimSuffix(name, ".zst"))
	if err != nil {
		return true, nil
	}
	switch kind {
	case "packs":
		return p.catalog.HasPack(ctx, id)
	case "indexes":
		return p.catalog.HasTree(ctx, id)
	case "locations":
		return p.catalog.Starts.HasLocations(ctx, id)
	case "layers":
		known, _, err := p.catalog.HasLayer(ctx, "sha256:"+id.String(), "")
		return known, err
	}
	return true, nil
}

// Recover empties the scratch directory, and cleans the claims of the previous process of this
// name.
func (p *Publisher) Recover(ctx context.Context) {
	entries, err := os.ReadDir(p.scratch)
	for _, entry := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(p.scratch, entry.Name())))
	}
	if err != nil {
		p.log.Error("cannot clear the scratch directory", "err", err)
	}
	p.sweep(ctx, p.owner+"/")
}

// Run cleans claims that have expired, until ctx ends.
func (p *Publisher) Run(ctx context.Context) error {
	for sleep.For(ctx, p.Lease/2) {
		p.sweep(ctx, "")
	}
	return ctx.Err()
}

// sweep cleans expired claims, and those of owners whose names begin with ended.
func (p *Publisher) sweep(ctx context.Context, ended string) {
	for {
		claim, err := p.catalog.Claims.Expired(ctx, p.newOwner(), ended, p.Lease, sweepAtOnce)
		if err == nil && len(claim.Keys) == 0 {
			return
		}
		if err == nil {
			err = p.clean(ctx, claim)
		}
		if err != nil {
			if ctx.Err() == nil {
				p.log.Error("cannot clean claims of objects", "err", err)
			}
			return
		}
	}
}
