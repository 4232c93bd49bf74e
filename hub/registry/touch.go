package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"lighter/sleep"
)

// Uses receives which blobs, manifests and tags clients rely on, and keeps a blob from being
// deleted then. The digest of a tag is its TagKey.
type Uses interface {
	// Touch protects blobs against deletion for a while, unless that was done within the last
	// interval. It fails if one of them is being deleted.
	Touch(ctx context.Context, digests []string, interval time.Duration) error
	// IsDeleting reports whether an error of Touch says that a blob is being deleted.
	IsDeleting(err error) bool
	// DeleteDamaged calls fn, which deletes a damaged blob, unless the blob has to stay for now.
	// Touch fails meanwhile. The context of fn ends after half of the lease.
	DeleteDamaged(ctx context.Context, digest string, lease time.Duration, fn func(context.Context) error) error
}

const (
	touchInterval = time.Minute
	touchTimeout  = 45 * time.Second // longer than it takes to delete a blob
	touchPause    = 50 * time.Millisecond
)

// touch tells uses that clients rely on blobs. It waits while one of them is being deleted: then
// the blob is missing.
func (r *Registry) touch(ctx context.Context, digests ...string) error {
	if r.uses == nil || len(digests) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, touchTimeout)
	defer cancel()
	for {
		err := r.uses.Touch(ctx, digests, r.TouchInterval)
		if err == nil {
			return nil
		}
		if !r.uses.IsDeleting(err) {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		if !sleep.For(ctx, touchPause) {
			return fmt.Errorf("%w: blob: %w", ErrUnavailable, err)
		}
	}
}

// TagKey returns what a tag is touched by.
func TagKey(repository, tag string) string { return repository + ":" + tag }

// TouchTag tells that a tag is about to get a manifest. It waits while the tag is being deleted.
func (r Repository) TouchTag(ctx context.Context, tag string) error {
	return r.registry.touch(ctx, TagKey(r.name, tag))
}

// TouchBlobs tells that clients rely on blobs of the registry. It waits while one of them is being
// deleted.
func (r Repository) TouchBlobs(ctx context.Context, digests []string) error {
	return r.registry.touch(ctx, digests...)
}

const (
	// maxTouched bounds the manifests below an index that Touch reads. Further ones are refused
	// with the index, or are not ingested.
	maxTouched = 2000
	// touchedAtOnce of these are read at a time, and what they name is noted in one step.
	touchedAtOnce = 16
)

// Touch tells that clients rely on a manifest, and on all that it names.
func (r Repository) Touch(ctx context.Context, m Manifest) error {
	digests, below := []string{digest.FromBytes(m.Bytes).String()}, []Manifest{m}
	seen, waiting := map[string]bool{}, []string(nil) // manifests
	for read := 0; ; {
		for _, m := range below {
			for _, d := range blobsOf(m) {
				digests = append(digests, d.String())
			}
			for _, d := range manifestsOf(m) {
				child := d.String()
				if digests = append(digests, child); !seen[child] {
					seen[child] = true
					waiting = append(waiting, child)
				}
			}
		}
		if err := r.registry.touch(ctx, digests...); err != nil {
			return err
		}
		next := waiting[:min(len(waiting), touchedAtOnce, maxTouched-read)]
		if len(next) == 0 {
			return nil
		}
		var err error
		if below, err = r.manifests(ctx, next); err != nil {
			return err
		}
		digests, waiting, read = nil, waiting[len(next):], read+len(next)
	}
}

const (
	// foundAtOnce bounds the manifests that a process touches at a time because clients have found
	// them: anybody may ask for them, and an index names up to maxTouched others. Further requests
	// wait for manifestsTimeout.
	foundAtOnce = 4
	// maxFound bounds the manifests that are remembered because they were touched, of 150 bytes
	// each. Then all are forgotten.
	maxFound = 4096
)

// found remembers when manifests that clients have found were touched, by repository and digest,
// with all that they name.
type found struct {
	mu sync.Mutex
	at map[string]time.Time
}

// isFresh reports whether a manifest was touched within an interval.
func (f *found) isFresh(key string, interval time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok := f.at[key]
	return ok && time.Since(at) < interval
}

func (f *found) note(key string, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at == nil || len(f.at) >= maxFound {
		f.at = map[string]time.Time{}
	}
	f.at[key] = at
}

// touchFound is Touch for a manifest that a client has found, unless this process has done that
// within TouchInterval. It does nothing if the manifest cannot be read.
func (r Repository) touchFound(ctx context.Context, digest string) error {
	of, key := r.registry, r.name+"@"+digest
	if of.found.isFresh(key, of.TouchInterval) {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, manifestsTimeout)
	defer cancel()
	if err := of.Bounds.found.Acquire(wait, 1); err != nil {
		return fmt.Errorf("too many manifests are being looked for: %w", err)
	}
	defer of.Bounds.found.Release(1)
	if of.found.isFresh(key, of.TouchInterval) { // another request has done it meanwhile
		return nil
	}
	at := time.Now()
	m, err := r.Manifest(ctx, digest)
	if err != nil {
		return nil // the answer says it
	}
	if err := r.Touch(ctx, m); err != nil {
		return err
	}
	of.found.note(key, at)
	return nil
}

// manifests reads manifests at the same time. It leaves out those that do not exist.
func (r Repository) manifests(ctx context.Context, digests []string) ([]Manifest, error) {
	found := make([]Manifest, len(digests))
	group, ctx := errgroup.WithContext(ctx)
	for i, d := range digests {
		group.Go(func() error {
			m, err := r.Manifest(ctx, d)
			if errors.Is(err, ErrNotFound) {
				return nil
			}
			found[i] = m
			return err
		})
	}
	err := group.Wait()
	return slices.DeleteFunc(found, func(m Manifest) bool { return m.Digest == "" }), err
}
