package startup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
	"lighter/format/guess"
	"lighter/format/plan"
	"lighter/format/trace"
	"lighter/hub/catalog"
	"lighter/hub/jobs"
)

// maker makes the layouts of trees, and recompresses their startup packs. It runs the jobs of both
// kinds. A layout is published only while the job belongs to this process, and replaces only the
// layout that the tree had when the work on the new one began.
type maker struct {
	Config
	trees      *trees
	recordings *recordings
	quota      *quota
	timing     *Timing

	made, givenUp atomic.Int64 // layouts made, and layouts given up after maxTries failures
}

// run makes the layout of a tree.
func (m *maker) run(ctx context.Context, j *jobs.Running) error {
	tree, err := chunk.ParseID(j.Key)
	if err != nil {
		return err
	}
	if err := m.Bounds.making.Acquire(ctx, 1); err != nil {
		return err
	}
	defer m.Bounds.making.Release(1)
	begin := time.Now()
	limited, cancel := context.WithTimeout(ctx, layoutTimeout)
	defer cancel()
	packs, changed, err := m.make(limited, j.Lease(), tree)
	for range maxConflicts {
		if !errors.Is(err, catalog.ErrChanged) {
			break
		}
		packs, changed, err = m.make(limited, j.Lease(), tree)
	}
	took := time.Since(begin)
	if m.timing.MergeDelay > 0 && ctx.Err() == nil {
		if restErr := m.Catalog.Starts.RestLayout(ctx, tree, restFactor*took); restErr != nil {
			m.Log.Warn("cannot delay the next layout", "tree", tree.Short(), "err", restErr)
		}
	}
	switch {
	case isMissing(err): // the tree was removed
		return nil
	case err != nil:
		if j.Attempts >= maxTries && ctx.Err() == nil && !jobs.IsRetried(err) {
			m.Log.Warn("layout given up until there is a new trace", "tree", tree.Short(), "tries", j.Attempts)
			m.givenUp.Add(1)
		}
		return err
	case !changed:
		return nil
	}
	size := int64(0)
	for _, p := range packs {
		size += p.Bytes
	}
	m.Log.Info("layout made", "tree", tree.Short(), "packs", len(packs), "bytes", size, "duration", took)
	if err := m.quota.enforce(ctx); err != nil && ctx.Err() == nil { // the next layout or sweep does it
		m.Log.Warn("cannot enforce startup_bytes", "err", err)
	}
	return nil
}

// make merges a tree's new traces, and makes the tree's layout unless the tree has the same layout
// already.
func (m *maker) make(ctx context.Context, l catalog.Lease, tree chunk.ID) (packs []plan.Pack, changed bool, err error) {
	use, err := m.Catalog.Starts.TreeUse(ctx, tree)
	if err != nil {
		return nil, false, err
	}
	now, err := m.Catalog.Now(ctx)
	if err != nil {
		return nil, false, err
	}
	unserved := !use.Unserved.IsZero() && use.Unserved.Before(now.Add(-m.timing.Keep))
	if !use.Served && !unserved && use.Lost.IsZero() {
		return nil, false, nil // an image may soon have the tree again
	}
	before, err := m.Catalog.Starts.Layout(ctx, tree)
	if err != nil {
		return nil, false, err
	}
	t, err := m.trees.open(ctx, tree)
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	started := false // a start was reported
	if !unserved {
		kept, err := m.recordings.merge(ctx, t)
		if err != nil {
			return nil, false, err
		}
		if started = len(kept) > 0; use.Lost.IsZero() {
			if packs, err = m.plan(ctx, t, kept); err != nil {
				return nil, false, err
			}
		}
	}
	digest := digestOf(packs)
	is, recompressed := hasLayout(before.Startup, digest)
	if !is {
		d, err := stage(ctx, m.Catalog, t, packs, digest, m.Encoders.EncodeBackground)
		if err != nil {
			return nil, false, err
		}
		if err := d.publish(ctx, m.Publisher, l, before); err != nil {
			return nil, false, err
		}
		m.made.Add(1)
	}
	if started && len(packs) > 0 && !recompressed { // a guess is soon replaced: after the first start
		err = m.requestRecompression(ctx, tree, digest, !is)
	}
	return packs, !is, err
}

// plan returns the packs that a tree with these recordings should have.
func (m *maker) plan(ctx context.Context, t *openTree, kept []trace.Recording) ([]plan.Pack, error) {
	limit, err := m.quota.bytes(ctx)
	if err != nil {
		return nil, err
	}
	guesses, err := m.guess(ctx, t)
	if err != nil {
		return nil, err
	}
	return t.Layout(ctx, kept, guesses, limit/treeShare)
}

// guess returns recordings of likely starts, which no node has reported. It returns none for a tree
// without an image.
func (m *maker) guess(ctx context.Context, t *openTree) ([]trace.Recording, error) {
	images, err := m.Catalog.TreeImages(ctx, t.ID())
	if err != nil || len(images) == 0 {
		return nil, err
	}
	c, err := m.Images.RunConfig(ctx, images[0])
	if err != nil { // the guess still has the runtimes of the image
		m.Log.Warn("cannot read an image's config: its startup packs are guessed without it", "image", images[0].Name,
			"err", err)
	}
	limited, cancel := context.WithTimeout(ctx, guessTimeout)
	defer cancel()
	image := guess.Image{Metadata: t.metadata, Extents: t.Map,
		Chunk: func(ctx context.Context, _ int64, ref chunk.Ref) ([]byte, error) {
			return t.chunks.read(ctx, ref.ID)
		},
		Config: guess.ConfigOf(c)}
	guesses, err := image.Recordings(limited)
	if err != nil && ctx.Err() == nil {
		m.Log.Warn("cannot guess starts in time: the layout is made without a guess", "image", images[0].Name,
			"duration", guessTimeout)
		return nil, nil
	}
	return guesses, err
}

// layoutVersion is a part of a layout's digest. It is changed when packs are to be written in
// another way, so that all layouts are made again.
const layoutVersion = 3

// digestOf returns a digest that identifies a layout. It is empty without packs.
func digestOf(packs []plan.Pack) []byte {
	if len(packs) == 0 {
		return nil
	}
	sum := sha256.New()
	number := func(n int64) { _ = binary.Write(sum, binary.LittleEndian, n) } // a hash never fails
	number(layoutVersion)
	for _, p := range packs {
		atMount := int64(0)
		if p.AtMount {
			atMount = 1
		}
		number(atMount)
		number(int64(len(p.Triggers)))
		for _, t := range p.Triggers {
			number(t)
		}
		number(int64(len(p.Units)))
		for _, unit := range p.Units {
			number(int64(len(unit)))
			for _, ref := range unit {
				sum.Write(ref.ID[:])
			}
		}
	}
	return sum.Sum(nil)
}

// recompressedMark follows the digest of a layout in the catalog once its packs are recompressed.
const recompressedMark = 1

// hasLayout reports whether a tree's layout in the catalog, stored, is the one with that digest,
// and whether its packs are recompressed.
func hasLayout(stored, digest []byte) (is, recompressed bool) {
	if len(digest) > 0 && bytes.Equal(stored, append(slices.Clone(digest), recompressedMark)) {
		return true, true
	}
	return bytes.Equal(stored, digest), false
}
