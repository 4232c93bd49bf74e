package startup

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/pack"
	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/sleep"
)

// RecompressJob is the kind of the jobs that recompress the startup packs of a tree. Their key is
// the tree, their payload the digest of the layout.
//
// A container may be waiting for new startup packs, so they are made as fast as other packs. Every
// node that starts the image fetches them. So once their layout has not changed for a while, they
// are recompressed at the highest level. docs/decisions/bytes.md has the cost and the gain.
const RecompressJob = "recompress"

// errSuperseded means that a tree got another layout while its packs were recompressed.
var errSuperseded = errors.New("superseded by another layout")

// requestRecompression queues the recompression of a tree's startup packs. If their layout is new,
// the job begins only after the layout has not changed for a while.
func (m *maker) requestRecompression(ctx context.Context, tree chunk.ID, digest []byte, isNew bool) error {
	_, err := m.Catalog.Jobs.Add(ctx, catalog.Job{Kind: RecompressJob, Key: tree.String(), Payload: digest,
		Priority: jobs.Low, Postpones: isNew}, m.timing.Recompress)
	m.Jobs.Changed(RecompressJob, tree.String())
	return err
}

// recompress makes a tree's startup packs again, smaller, and publishes them if the layout is still
// the same.
func (m *maker) recompress(ctx context.Context, j *jobs.Running) error {
	tree, err := chunk.ParseID(j.Key)
	if err != nil {
		return err
	}
	begin := time.Now()
	limited, cancel := context.WithTimeout(ctx, recompressTimeout)
	defer cancel()
	switch err := m.recompressTree(limited, j.Lease(), tree, j.Payload); {
	case errors.Is(err, errSuperseded), errors.Is(err, catalog.ErrChanged), isMissing(err):
		return nil // another layout has a job of its own, and a removed tree needs none
	case err != nil:
		return err
	}
	m.Log.Info("startup packs recompressed", "tree", tree.Short(), "duration", time.Since(begin))
	return nil
}

// recompressTree recompresses the startup packs of a tree. The error is errSuperseded if its layout
// does not have the given digest, or the recordings have changed.
func (m *maker) recompressTree(ctx context.Context, l catalog.Lease, tree chunk.ID, digest []byte) (err error) {
	before, err := m.unchanged(ctx, tree, digest)
	if err != nil {
		return err
	}
	t, err := m.trees.open(ctx, tree)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	kept, _, err := m.recordings.load(ctx, tree)
	if err != nil {
		return err
	}
	packs, err := m.plan(ctx, t, kept)
	if err != nil {
		return err
	}
	if !bytes.Equal(digestOf(packs), digest) { // the recordings have changed: a new layout follows soon
		return errSuperseded
	}
	best := newBestEncoder(m.Log)
	defer best.close()
	d, err := stage(ctx, m.Catalog, t, packs, append(slices.Clone(digest), recompressedMark),
		func(ctx context.Context, b *pack.UnitBuilder, dst []byte) ([]byte, error) {
			if err := m.yield(ctx); err != nil {
				return nil, err
			}
			if _, err := m.unchanged(ctx, tree, digest); err != nil {
				return nil, err
			}
			var failed error
			delayed, err := m.Encoders.Background(ctx, func(*zstd.Encoder) {
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
	return d.publish(ctx, m.Publisher, l, before)
}

// yield waits while a layout is being made, because that is more urgent.
func (m *maker) yield(ctx context.Context) error {
	if err := m.Bounds.making.Acquire(ctx, 1); err != nil {
		return err
	}
	m.Bounds.making.Release(1)
	return nil
}

// unchanged returns a tree's layout. The error is errSuperseded if it has another digest.
func (m *maker) unchanged(ctx context.Context, tree chunk.ID, digest []byte) (catalog.Layout, error) {
	now, err := m.Catalog.Starts.Layout(ctx, tree)
	if err == nil && !bytes.Equal(now.Startup, digest) {
		err = errSuperseded
	}
	return now, err
}
