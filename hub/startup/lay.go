package startup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/hub/catalog"
	"lighter/hub/startup/guess"
	"lighter/hub/startup/plan"
)

// lay gives a tree the layout that follows from its recordings and new traces. It returns a summary of
// the layout, or "" if nothing changed.
func (s *Service) lay(ctx context.Context, due catalog.Due) (done string, err error) {
	gone := !due.Unserved.IsZero() && due.Unserved.Before(time.Now().Add(-s.Keep))
	if !due.Served && !gone && due.Lost.IsZero() {
		return "", nil // its image may come back
	}
	before, err := s.catalog.Layout(ctx, due.Tree)
	if err != nil {
		return "", err
	}
	t, err := s.open(ctx, due.Tree)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	var packs []plan.Pack
	told := false
	if !gone {
		if packs, told, err = s.planPacks(ctx, t, !due.Lost.IsZero()); err != nil {
			return "", err
		}
	}
	digest := digestOf(packs)
	if is, pressed := isLaid(before.Startup, digest); is {
		if told && !pressed && !s.isLoose(due.Tree) { // the hub ended before it was recompressed
			s.loosen(due.Tree, packs, digest)
		}
		return "", nil
	}
	if err := s.publish(ctx, t, before, packs, digest, s.encoders.EncodeBackground); err != nil {
		return "", err
	}
	s.laid.Add(1)
	done = summary(packs)
	if !told { // the first start replaces a guess
		packs = nil
	}
	s.loosen(due.Tree, packs, digest)
	return done, nil
}

// pressedMark follows the digest of a layout in the catalog once its packs are recompressed.
const pressedMark = 1

// isLaid reports whether the catalog has the layout with that digest, and whether it is recompressed.
func isLaid(has, digest []byte) (is, pressed bool) {
	if len(digest) > 0 && bytes.Equal(has, append(slices.Clone(digest), pressedMark)) {
		return true, true
	}
	return bytes.Equal(has, digest), false
}

// The startup packs of one tree may take 1/treeShare of the limit of all.
const treeShare = 4

// plan returns the packs that a tree should have, none if they were evicted. told reports whether there
// are recordings of real starts.
func (s *Service) planPacks(ctx context.Context, t *openTree, lost bool) (packs []plan.Pack, told bool, err error) {
	kept, err := s.merge(ctx, t)
	if err != nil || lost {
		return nil, false, err
	}
	limit, err := s.Limit(ctx)
	if err != nil {
		return nil, false, err
	}
	guesses, err := s.guess(ctx, t)
	if err != nil {
		return nil, false, err
	}
	packs, err = t.Layout(ctx, kept, guesses, limit/treeShare)
	return packs, len(kept) > 0, err
}

// guessTimeout bounds a guess, since a hostile image can make it slow. A layout does without a guess
// that takes longer.
const guessTimeout = 2 * time.Minute

// guess returns recordings of starts that were not reported. A tree without an image has none.
func (s *Service) guess(ctx context.Context, t *openTree) ([]trace.Recording, error) {
	images, err := s.catalog.TreeImages(ctx, t.ID())
	if err != nil || len(images) == 0 {
		return nil, err
	}
	c, err := s.images.RunConfig(ctx, images[0])
	if err != nil { // a guess of the runtimes does not need it
		s.log.Warn("guess how an image starts without its config", "image", images[0].Name, "cause", err)
	}
	limited, cancel := context.WithTimeout(ctx, guessTimeout)
	defer cancel()
	image := guess.Image{Metadata: t.metadata, Extents: t.Map,
		Chunk:  func(ctx context.Context, ref chunk.Ref) ([]byte, error) { return t.chunks.read(ctx, ref.ID) },
		Config: guess.Config{Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, WorkingDir: c.WorkingDir}}
	guesses, err := image.Recordings(limited)
	if err != nil && ctx.Err() == nil {
		s.log.Warn("it takes too long to guess how an image starts", "image", images[0].Name)
		return nil, nil
	}
	return guesses, err
}

// merge adds new traces to the recordings of a tree and returns all of them.
func (s *Service) merge(ctx context.Context, t *openTree) (kept []trace.Recording, err error) {
	for range maxTries {
		if kept, err = s.mergeOnce(ctx, t); !errors.Is(err, catalog.ErrChanged) {
			break
		}
	}
	return kept, err
}

func (s *Service) mergeOnce(ctx context.Context, t *openTree) ([]trace.Recording, error) {
	kept, before, err := s.recordings(ctx, t.ID())
	if err != nil {
		return nil, err
	}
	waiting, err := s.catalog.Traces(ctx, t.ID())
	if err != nil || len(waiting) == 0 {
		return kept, err
	}
	sorted := plan.Sort(kept)
	for _, w := range waiting {
		more, err := t.told(ctx, w)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil { // it is dropped with the others
			s.log.Warn("a trace is of no use", "tree", t.ID().Short(), "cause", err)
		}
		if !w.Raw || s.mayTell(t.ID(), w.Sender, sorted, more) {
			sorted.Add(more)
		}
	}
	kept = sorted.Recordings()
	return kept, s.catalog.KeepRecordings(ctx, t.ID(), before, squeeze(trace.EncodeText(kept)), waiting[len(waiting)-1].N)
}

// mayTell reports whether a sender's recording is kept. The number of new workloads that one sender may
// begin is limited.
func (s *Service) mayTell(tree chunk.ID, sender string, kept *plan.Kept, more []trace.Recording) bool {
	if sender == "" || len(more) == 0 || !kept.IsNew(more[0]) || s.senders.count(sender, tree, 0, 1, time.Now()) {
		return true
	}
	s.log.Debug("a trace is not kept: its sender has begun enough workloads", "tree", tree.Short(), "sender", sender)
	return false
}

// told decodes a stored trace.
func (t *openTree) told(ctx context.Context, w catalog.Trace) ([]trace.Recording, error) {
	plain, err := unsqueeze(w.Body)
	if err != nil {
		return nil, err
	}
	if !w.Raw { // an import, perhaps of another image
		all, err := trace.ParseText(plain)
		if err != nil {
			return nil, err
		}
		return t.Known(ctx, all)
	}
	tr, err := trace.Decode(plain, t.ID(), t.DeviceSize)
	if err != nil {
		return nil, err
	}
	r, err := t.Record(ctx, tr)
	return []trace.Recording{r}, err
}

// recordings returns the recordings of a tree, and their encoded form in the catalog. Unreadable
// recordings count as none.
func (s *Service) recordings(ctx context.Context, tree chunk.ID) (kept []trace.Recording, body []byte, err error) {
	body, err = s.catalog.Recordings(ctx, tree)
	if err != nil || body == nil {
		return nil, nil, err
	}
	plain, err := unsqueeze(body)
	if err == nil {
		kept, err = trace.ParseText(plain)
	}
	if err != nil {
		s.log.Warn("what was kept of starts cannot be read", "tree", tree.Short(), "cause", err)
	}
	return kept, body, nil
}

// layoutVersion changes whenever the same packs are to be written in another way.
const layoutVersion = 2

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

// summary describes a layout for the log.
func summary(packs []plan.Pack) string {
	bytes := int64(0)
	for _, p := range packs {
		bytes += p.Bytes
	}
	return fmt.Sprintf("%d startup packs of %d plain bytes", len(packs), bytes)
}
