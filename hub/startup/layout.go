package startup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/hub/catalog"
	"lighter/hub/startup/guess"
	"lighter/hub/startup/plan"
)

const (
	// The hub tries to make a layout maxTries times; a crash of the hub during an attempt counts as
	// a failure. Then the tree keeps its layout until there are new traces. firstPause is the pause
	// before the second attempt; it doubles.
	maxTries   = 3
	firstPause = time.Minute
	// layoutTimeout bounds the time for one layout, because others wait for it.
	layoutTimeout = 15 * time.Minute
	// guessTimeout bounds a guess, because a hostile image can make it slow. If a guess takes longer,
	// the layout is made without it.
	guessTimeout = 2 * time.Minute
	// idlePause is the longest time between two looks for due layouts.
	idlePause = 10 * time.Minute
	// The startup packs of one tree may take 1/treeShare of the quota.
	treeShare = 4
)

// maker makes the layouts of trees.
type maker struct {
	Config
	trees        *trees
	recordings   *recordings
	quota        *quota
	schedule     *schedule
	recompressor *recompressor
	timing       *Timing
	// publishing is locked from the reading of a tree's layout until another one is published, and
	// while retired packs are deleted.
	publishing *sync.Mutex

	made, givenUp atomic.Int64 // layouts
}

// run makes due layouts until ctx ends.
func (m *maker) run(ctx context.Context) {
	for ctx.Err() == nil {
		wait := time.NewTimer(m.next(ctx))
		select {
		case <-ctx.Done():
		case <-m.schedule.wake:
		case <-wait.C:
		}
		wait.Stop()
	}
}

// next makes the layout that is due first, if any. It returns the time until the next one is due.
func (m *maker) next(ctx context.Context) time.Duration {
	due, err := m.Catalog.NextDue(ctx)
	switch {
	case errors.Is(err, catalog.ErrNotFound):
		return idlePause
	case err != nil:
		if ctx.Err() == nil {
			m.Log.Error("cannot look for due layouts", "err", err)
		}
		return firstPause
	}
	if wait := time.Until(due.At); wait > 0 {
		return wait
	}
	if err := m.attempt(ctx, due); err != nil && ctx.Err() == nil {
		m.Log.Error("cannot store the result of a layout", "tree", due.Tree.Short(), "err", err)
		return firstPause
	}
	return 0
}

// attempt makes the layout of a due tree and records the result. Its error is the catalog's.
func (m *maker) attempt(ctx context.Context, due catalog.Due) error {
	defer m.schedule.begin(due.Tree)()
	if due.Tries >= maxTries {
		m.Log.Warn("layout given up until there is a new trace", "tree", due.Tree.Short(), "tries", due.Tries)
		m.givenUp.Add(1)
		return m.Catalog.Settle(ctx, due.Tree, due.Changes, time.Now())
	}
	err := m.Catalog.Try(ctx, due, time.Now().Add(firstPause<<due.Tries))
	if errors.Is(err, catalog.ErrChanged) {
		return nil // another process makes the layout
	}
	if err != nil {
		return err
	}
	begin := time.Now()
	limited, cancel := context.WithTimeout(ctx, layoutTimeout)
	packs, changed, err := m.make(limited, due)
	cancel()
	took := time.Since(begin)
	m.schedule.rest(due.Tree, took)
	if ctx.Err() != nil { // the hub is stopping: forget the attempts so far
		return m.Catalog.Settle(context.WithoutCancel(ctx), due.Tree, -1, time.Now())
	}
	if err != nil {
		m.Log.Warn("cannot make layout", "tree", due.Tree.Short(), "err", err)
		return nil // it is tried again
	}
	if changed {
		size := int64(0)
		for _, p := range packs {
			size += p.Bytes
		}
		m.Log.Info("layout made", "tree", due.Tree.Short(), "packs", len(packs), "bytes", size, "duration", took)
	}
	if err := m.Catalog.Settle(ctx, due.Tree, due.Changes, m.schedule.dueAt(due.Tree)); err != nil || !changed {
		return err
	}
	return m.quota.enforce(ctx)
}

// make merges a tree's new traces, and makes its layout unless the tree has the same one already.
func (m *maker) make(ctx context.Context, due catalog.Due) (packs []plan.Pack, changed bool, err error) {
	unserved := !due.Unserved.IsZero() && due.Unserved.Before(time.Now().Add(-m.timing.Keep))
	if !due.Served && !unserved && due.Lost.IsZero() {
		return nil, false, nil // its image may come back
	}
	m.publishing.Lock()
	defer m.publishing.Unlock()
	before, err := m.Catalog.Layout(ctx, due.Tree)
	if err != nil {
		return nil, false, err
	}
	t, err := m.trees.open(ctx, due.Tree)
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	started := false // a start was reported
	if !unserved {
		if packs, started, err = m.plan(ctx, t, !due.Lost.IsZero()); err != nil {
			return nil, false, err
		}
	}
	digest := digestOf(packs)
	if is, recompressed := hasLayout(before.Startup, digest); is {
		if started && !recompressed && !m.recompressor.isPending(due.Tree) { // the hub ended before it could
			m.recompressor.add(due.Tree, packs, digest)
		}
		return packs, false, nil
	}
	d, err := stage(ctx, m.Catalog, t, packs, digest, m.Encoders.EncodeBackground)
	if err != nil {
		return nil, false, err
	}
	if err := d.publish(ctx, m.Publisher, before); err != nil {
		return nil, false, err
	}
	m.made.Add(1)
	if started { // otherwise the first start soon replaces the guess
		m.recompressor.add(due.Tree, packs, digest)
	} else {
		m.recompressor.remove(due.Tree)
	}
	return packs, true, nil
}

// plan returns the packs that a tree should have, none if they were evicted. started reports
// whether there are recordings of real starts.
func (m *maker) plan(ctx context.Context, t *openTree, evicted bool) (packs []plan.Pack, started bool, err error) {
	kept, err := m.recordings.merge(ctx, t)
	if err != nil || evicted {
		return nil, false, err
	}
	limit, err := m.quota.bytes(ctx)
	if err != nil {
		return nil, false, err
	}
	guesses, err := m.guess(ctx, t)
	if err != nil {
		return nil, false, err
	}
	packs, err = t.Layout(ctx, kept, guesses, limit/treeShare)
	return packs, len(kept) > 0, err
}

// guess returns recordings of starts that were not reported. A tree without an image has none.
func (m *maker) guess(ctx context.Context, t *openTree) ([]trace.Recording, error) {
	images, err := m.Catalog.TreeImages(ctx, t.ID())
	if err != nil || len(images) == 0 {
		return nil, err
	}
	c, err := m.Images.RunConfig(ctx, images[0])
	if err != nil { // the guess still has the runtimes of the image
		m.Log.Warn("image config unreadable: startup packs are guessed without it", "image", images[0].Name, "err", err)
	}
	limited, cancel := context.WithTimeout(ctx, guessTimeout)
	defer cancel()
	image := guess.Image{Metadata: t.metadata, Extents: t.Map,
		Chunk:  func(ctx context.Context, ref chunk.Ref) ([]byte, error) { return t.chunks.read(ctx, ref.ID) },
		Config: guess.Config{Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, WorkingDir: c.WorkingDir}}
	guesses, err := image.Recordings(limited)
	if err != nil && ctx.Err() == nil {
		m.Log.Warn("guess of starts took too long", "image", images[0].Name, "duration", guessTimeout)
		return nil, nil
	}
	return guesses, err
}

// layoutVersion changes whenever the same packs are to be written in another way.
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
		number(map[bool]int64{true: 1}[p.AtMount])
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

// hasLayout reports whether stored, from the catalog, is the layout with that digest, and whether
// it is recompressed.
func hasLayout(stored, digest []byte) (is, recompressed bool) {
	if len(digest) > 0 && bytes.Equal(stored, append(slices.Clone(digest), recompressedMark)) {
		return true, true
	}
	return bytes.Equal(stored, digest), false
}
