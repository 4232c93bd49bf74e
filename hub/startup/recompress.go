package startup

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/pack"
	"lighter/hub/catalog"
	"lighter/hub/encoder"
	"lighter/hub/publish"
	"lighter/hub/startup/plan"
	"lighter/sleep"
)

// A container may be waiting for new startup packs, so they are made as fast as other packs. Every
// node that starts the image fetches them, so once their layout has not changed for a while they
// are recompressed at the highest level. docs/decisions/bytes.md has the cost and the gain.
const (
	// recompressTimeout bounds the work on one tree: 2 GiB take 9 minutes alone, and ten times that
	// beside ingestion.
	recompressTimeout = 2 * time.Hour
	// While images are ingested, a pause follows each unit, ingestRestFactor times as long as the
	// unit took.
	ingestRestFactor = 9
	// maxPending bounds the layouts that wait in memory for recompression, of 40 bytes a chunk. The
	// packs of further layouts are not recompressed until the next trace; when the hub ends, this
	// holds for all.
	maxPending = 64
)

// errSuperseded means that a tree got another layout while its packs were recompressed.
var errSuperseded = errors.New("superseded by another layout")

// recompressor makes the startup packs of unchanged layouts smaller, one tree at a time. It is safe
// for concurrent use.
type recompressor struct {
	catalog    *catalog.Catalog
	trees      *trees
	publisher  *publish.Publisher
	encoders   *encoder.Pool
	schedule   *schedule
	publishing *sync.Mutex // see maker
	timing     *Timing
	log        *slog.Logger
	added      chan struct{} // has an element after add

	mu      sync.Mutex // guards the following
	pending map[chunk.ID]*pendingLayout
}

type pendingLayout struct {
	due    time.Time
	packs  []plan.Pack
	digest []byte
}

func newRecompressor(s *Service) *recompressor {
	return &recompressor{catalog: s.config.Catalog, trees: s.trees, publisher: s.config.Publisher,
		encoders: s.config.Encoders,
		schedule: s.schedule, publishing: s.publishing, timing: s.Timing, log: s.config.Log,
		added: make(chan struct{}, 1), pending: map[chunk.ID]*pendingLayout{}}
}

// add schedules the recompression of a tree's startup packs, unless they change before.
func (r *recompressor) add(tree chunk.ID, packs []plan.Pack, digest []byte) {
	r.remove(tree)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(packs) > 0 && len(r.pending) < maxPending {
		r.pending[tree] = &pendingLayout{time.Now().Add(r.timing.Recompress), packs, digest}
	}
	select {
	case r.added <- struct{}{}:
	default:
	}
}

// remove undoes add.
func (r *recompressor) remove(tree chunk.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending, tree)
}

// isPending reports whether a tree's startup packs are still to be recompressed.
func (r *recompressor) isPending(tree chunk.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending[tree] != nil
}

// run recompresses packs until ctx ends.
func (r *recompressor) run(ctx context.Context) {
	for ctx.Err() == nil {
		wait := time.NewTimer(r.next(ctx))
		select {
		case <-ctx.Done():
		case <-r.added:
		case <-wait.C:
		}
		wait.Stop()
	}
}

// next recompresses the packs of the tree that is due first, if any. It returns the time until the
// next one is due.
func (r *recompressor) next(ctx context.Context) time.Duration {
	tree, l := r.first()
	if l == nil {
		return idlePause
	}
	if wait := time.Until(l.due); wait > 0 {
		return wait
	}
	begin := time.Now()
	limited, cancel := context.WithTimeout(ctx, recompressTimeout)
	defer cancel()
	switch err := r.recompress(limited, tree, l); {
	case err == nil:
		r.log.Info("startup packs recompressed", "tree", tree.Short(), "duration", time.Since(begin))
	case errors.Is(err, errSuperseded): // the other layout is pending itself
	case ctx.Err() == nil:
		r.log.Warn("cannot recompress startup packs", "tree", tree.Short(), "err", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending[tree] == l {
		delete(r.pending, tree)
	}
	return 0
}

// first returns the pending layout that is due first, or nil.
func (r *recompressor) first() (tree chunk.ID, first *pendingLayout) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, l := range r.pending {
		if first == nil || l.due.Before(first.due) {
			tree, first = id, l
		}
	}
	return tree, first
}

// recompress makes a tree's startup packs again, and publishes them if the layout is still the
// same.
func (r *recompressor) recompress(ctx context.Context, tree chunk.ID, l *pendingLayout) (err error) {
	if _, err := r.unchanged(ctx, tree, l); err != nil {
		return err
	}
	t, err := r.trees.open(ctx, tree)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	best := newBestEncoder(r.log)
	defer best.close()
	d, err := stage(ctx, r.catalog, t, l.packs, append(slices.Clone(l.digest), recompressedMark),
		func(ctx context.Context, b *pack.UnitBuilder, dst []byte) ([]byte, error) {
			if err := r.pause(ctx, tree, l); err != nil {
				return nil, err
			}
			var failed error
			delayed, err := r.encoders.Background(ctx, func(*zstd.Encoder) {
				dst, failed = b.EncodeWith(dst, func(dst, content []byte) ([]byte, error) {
					return best.encode(ctx, dst, content)
				})
			})
			if err := errors.Join(err, failed); err != nil {
				return nil, err
			}
			sleep.For(ctx, ingestRestFactor*delayed)
			return dst, ctx.Err()
		})
	if err != nil {
		return err
	}
	r.publishing.Lock()
	defer r.publishing.Unlock()
	before, err := r.unchanged(ctx, tree, l)
	if err != nil {
		return err
	}
	return d.publish(ctx, r.publisher, before)
}

// pause waits while a layout is being made, because that is more urgent. The error is errSuperseded
// if the tree has got another layout meanwhile.
func (r *recompressor) pause(ctx context.Context, tree chunk.ID, l *pendingLayout) error {
	for attempt := r.schedule.attempt(); !r.schedule.currentTree().IsZero(); attempt = r.schedule.attempt() {
		select {
		case <-attempt:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	_, err := r.unchanged(ctx, tree, l)
	return err
}

// unchanged returns a tree's layout. The error is errSuperseded if the layout is no longer l.
func (r *recompressor) unchanged(ctx context.Context, tree chunk.ID, l *pendingLayout) (catalog.Layout, error) {
	now, err := r.catalog.Layout(ctx, tree)
	if err == nil && !bytes.Equal(now.Startup, l.digest) {
		err = errSuperseded
	}
	return now, err
}
