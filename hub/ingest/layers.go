package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/tree"
	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/objects"
	"lighter/hub/oci"
	"lighter/hub/publish"
	"lighter/hub/report"
	"lighter/sleep"
	"lighter/wire"
)

// splitLayers splits the new layers, and verifies blobs that are new for a known layer.
func (t *ingestion) splitLayers(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	seen := map[[2]string]bool{}
	// All workers claim layers in the same order, so that they do not wait in a circle.
	layers := slices.SortedStableFunc(slices.Values(t.image.Layers), func(a, b oci.Layer) int {
		return strings.Compare(a.DiffID, b.DiffID)
	})
	t.awaitEarly(ctx, layers)
	for _, l := range layers {
		if seen[[2]string{l.Digest, l.DiffID}] {
			continue
		}
		seen[[2]string{l.Digest, l.DiffID}] = true
		known, verified, err := t.claim(ctx, l)
		if err != nil {
			return cmp.Or(group.Wait(), err)
		}
		if verified {
			continue
		}
		var result *splitLayer // nil if the layer is only verified
		if !known && t.split[l.DiffID] == nil {
			result = &splitLayer{}
			t.split[l.DiffID] = result
		}
		// All steps are there before the first layer is read: forecasts add them up.
		step := t.progress.Step(LayerStep, wire.ShortDigest(l.Digest), l.Size)
		group.Go(func() error {
			if err := t.readLayer(ctx, l, step, result); err != nil {
				return fmt.Errorf("%s: %w", &l, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return t.staging.finish()
}

// awaitEarly waits for those layers that are already being split.
func (t *ingestion) awaitEarly(ctx context.Context, layers []oci.Layer) {
	var group sync.WaitGroup
	defer group.Wait()
	for _, l := range layers {
		if t.Early == nil || !t.Early.Splits(l.Digest) {
			continue
		}
		step := t.progress.Step(LayerStep, wire.ShortDigest(l.Digest), l.Size)
		group.Go(func() { t.Early.Wait(ctx, l.Digest, step.Add) })
	}
}

// claim reports whether a layer is known, and whether its blob was verified. If the layer is not
// known, this worker is to split it. While another worker does that, claim waits (wait).
func (t *ingestion) claim(ctx context.Context, l oci.Layer) (known, verified bool, err error) {
	w := wait{layer: l}
	for n := 1; ; n++ {
		known, verified, err = t.catalog.HasLayer(ctx, l.DiffID, l.Digest)
		if err != nil || known {
			return known, verified, err
		}
		claimed, err := t.catalog.Jobs.ClaimLayer(ctx, t.lease, l.DiffID)
		if err != nil {
			return false, false, err
		}
		if claimed {
			// Another worker may have published the layer since the first query.
			return t.catalog.HasLayer(ctx, l.DiffID, l.Digest)
		}
		if over, err := w.isOver(ctx, t); over || err != nil {
			return false, false, err
		}
		if !sleep.For(ctx, claimPauses.After(n)) {
			return false, false, ctx.Err()
		}
	}
}

// LayerStep is the kind of the steps of reading layers, in the progress of a job.
const LayerStep = "layer"

// readLayer verifies a layer and, unless result is nil, splits it.
func (t *ingestion) readLayer(ctx context.Context, l oci.Layer, step *report.Step, result *splitLayer) error {
	if err := t.layers.Acquire(ctx, 1); err != nil {
		return err
	}
	defer t.layers.Release(1)
	blob, err := t.source.Open(ctx, l.Digest)
	if err != nil {
		return err
	}
	defer blob.Close()
	reader := &layerReader{layer: l, limits: t.trees.limits, onRead: step.Add, keep: KeepNone}
	if result != nil {
		if err = t.staging.split(ctx, reader, t.encoders, result, blob); err == nil {
			err = reader.check()
		}
	} else {
		err = reader.verify(ctx, blob, tree.NewRecordWriter(io.Discard))
	}
	if err == nil || ctx.Err() != nil || jobs.IsRetried(err) {
		return err
	}
	// If the blob is corrupt, this may have caused any other error.
	if cause := t.checkBlob(ctx, l); cause != nil {
		return cause
	}
	return err
}

// checkBlob reads a blob again and checks only its digest.
func (t *ingestion) checkBlob(ctx context.Context, l oci.Layer) error {
	blob, err := t.source.Open(ctx, l.Digest)
	if err != nil {
		return err
	}
	defer blob.Close()
	got, err := digestOfReader(blob)
	if err == nil && got != l.Digest {
		err = errors.Join(corruptError(got), t.source.Drop(ctx, l.Digest))
	}
	return err
}

// known returns the tree of the image if its blobs are verified, and its index and locations are
// stored. This is so if another name has the same image. Otherwise known returns nil.
func (t *ingestion) known(ctx context.Context) (*madeTree, error) {
	for _, l := range t.image.Layers {
		if known, verified, err := t.catalog.HasLayer(ctx, l.DiffID, l.Digest); err != nil || !known || !verified {
			return nil, err
		}
	}
	return t.trees.known(ctx, t.image.Layers[len(t.image.Layers)-1].Chain)
}

// makeTree merges the image's layers and stages the index of their tree.
func (t *ingestion) makeTree(ctx context.Context) (*madeTree, error) {
	records := make([]Record, len(t.image.Layers))
	for i, l := range t.image.Layers {
		records[i].Open = func() (io.ReadCloser, error) { return t.openRecord(ctx, l.DiffID) }
	}
	made, err := t.trees.make(ctx, t.staging.dir, records, t.staging.units)
	var refused *tree.EntryError
	if errors.As(err, &refused) {
		return nil, fmt.Errorf("%s: entry %q: %w", &t.image.Layers[refused.Layer], refused.Entry, refused.Err)
	}
	return made, err
}

func (t *ingestion) openRecord(ctx context.Context, diffID string) (io.ReadCloser, error) {
	if l := t.split[diffID]; l != nil {
		return OpenRecord(l.record)
	}
	return t.trees.openRecord(ctx, diffID)
}

// publication returns the rows that the catalog gets with the image.
func (t *ingestion) publication(made *madeTree) *catalog.Publication {
	config := t.image.Config
	p := &catalog.Publication{Repository: t.repository, Platform: t.image.Platform,
		Image: t.row.N, Lease: t.lease, Size: t.image.Size(), Tree: made.tree, Statement: made.statement,
		Packs: t.staging.packs, Collections: t.before, KnownTree: len(made.files) == 0,
		Blobs: []catalog.Blob{{Digest: config.Digest.String(), MediaType: config.MediaType, Size: config.Size}}}
	for _, l := range t.image.Layers {
		p.Blobs = append(p.Blobs, catalog.Blob{
			Digest: l.Digest, MediaType: l.MediaType, Size: l.Size, DiffID: l.DiffID, Chain: l.Chain})
	}
	isNew := func(id chunk.ID) bool {
		return slices.ContainsFunc(t.staging.packs, func(p catalog.Pack) bool { return p.ID == id })
	}
	p.Located = slices.DeleteFunc(slices.Clone(made.packs), isNew)
	var position []uint32
	p.Chunks, position = t.staging.fresh()
	for diffID, l := range t.split {
		known, fresh := t.staging.layerChunks(l.chunks, position)
		p.Layers = append(p.Layers, catalog.Layer{
			DiffID: diffID, Bytes: l.bytes, Entries: l.entries, Known: known, New: fresh})
	}
	return p
}

// publish makes the image ready.
func (t *ingestion) publish(ctx context.Context, made *madeTree) error {
	made.sign(t.trees.keys, t.image.Layers[len(t.image.Layers)-1].Chain)
	if err := t.staging.flushed(); err != nil {
		return err
	}
	files := append(t.staging.packFiles(), made.files...)
	for diffID, l := range t.split {
		files = append(files, objects.Staged{Key: objects.LayerKey(diffID), Path: l.record})
	}
	return t.publisher.Publish(ctx, publish.Objects{Staged: files}, func(claim catalog.Claim) error {
		p := t.publication(made)
		p.Claim = claim
		return t.catalog.Publish(ctx, p)
	})
}
