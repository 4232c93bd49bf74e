package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/format/tree"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/publish"
	"lighter/hub/registry"
	"lighter/wire"
)

// taking is the work on one image.
type taking struct {
	*Service
	row        catalog.Image
	repository string
	copy       *imageCopy // that brings it; nil if it is in the registry
	job        *job
	image      *image
	staging    *staging
	split      map[string]*splitLayer // new layers, by diffID
}

// ingest takes an image in.
func (s *Service) ingest(ctx context.Context, row catalog.Image, from *imageCopy) error {
	ref, err := wire.ParseName(row.Name)
	if err != nil {
		return err
	}
	t := &taking{Service: s, row: row, repository: ref.Repository, copy: from, job: s.job(row.N), split: map[string]*splitLayer{}}
	if t.image, err = t.readImage(ctx); err != nil {
		return err
	}
	if t.staging, err = newStaging(s.publisher, s.catalog); err != nil {
		return err
	}
	defer func() {
		if err := t.staging.close(); err != nil { // the next start clears it
			s.config.Log.Error("clear the scratch space", "cause", err)
		}
	}()
	defer s.encoders.Ingest()()
	watch := stopwatch{last: time.Now()}
	if err := t.splitLayers(ctx); err != nil {
		return err
	}
	watch.lap("split")
	made, err := t.makeTree(ctx)
	if err != nil {
		return err
	}
	watch.lap("tree")
	if t.copy != nil { // a name that the registry does not know is of no use
		if err := t.copy.wait(ctx); err != nil {
			return err
		}
	}
	watch.lap("copy")
	if err := t.publish(ctx, made); err != nil {
		return err
	}
	watch.lap("publish")
	s.config.Log.Debug("image was taken in", append([]any{"image", row.Name, "tree", made.tree.ID, "new_layers", len(t.split),
		"new_packs", len(t.staging.packs), "chunks", len(t.staging.chunks)}, watch.laps...)...)
	return nil
}

// stopwatch notes how many seconds each step took, for the log.
type stopwatch struct {
	last time.Time
	laps []any
}

func (w *stopwatch) lap(name string) {
	now := time.Now()
	w.laps = append(w.laps, name, now.Sub(w.last).Seconds())
	w.last = now
}

// readImage reads manifest and config, from the registry or on their way there.
func (t *taking) readImage(ctx context.Context) (*image, error) {
	m, err := t.readManifest(ctx)
	if err != nil {
		return nil, err
	}
	manifest, err := parseManifest(m)
	if err != nil {
		return nil, err
	}
	if upload := t.upload(manifest.Config.Digest.String()); upload != nil {
		if err := upload.Wait(ctx); err != nil {
			return nil, err
		}
	}
	config, err := own{t.registry, t.repository}.Config(ctx, manifest.Config)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return parseImage(manifest, config)
}

func (t *taking) readManifest(ctx context.Context) (registry.Manifest, error) {
	if t.copy != nil {
		if m, ok := t.copy.manifest(t.row.Digest); ok {
			return m, nil
		}
	}
	m, err := t.registry.Manifest(ctx, t.repository, t.row.Digest)
	if errors.Is(err, registry.ErrNotFound) {
		return m, fmt.Errorf("%w (its copying was ended, or somebody deleted it); add or push it again", err)
	}
	return m, err
}

// upload returns the upload of a blob that is on its way to the registry, or nil.
func (t *taking) upload(digest string) *registry.Upload {
	if t.copy == nil {
		return nil
	}
	return t.copy.uploads[digest]
}

// openBlob opens a blob, before all of it is there if it is being copied.
func (t *taking) openBlob(ctx context.Context, digest string) (io.ReadCloser, error) {
	if upload := t.upload(digest); upload != nil {
		return upload.Open(ctx), nil
	}
	return t.registry.OpenBlob(ctx, t.repository, digest)
}

// splitLayers splits those layers that are new and verifies the blobs that are.
func (t *taking) splitLayers(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	seen := map[[2]string]bool{}
	splitting := map[string]bool{}
	for _, l := range t.image.layers {
		known, verified, err := t.catalog.HasLayer(ctx, l.DiffID, l.Digest)
		if err != nil {
			return errors.Join(err, group.Wait())
		}
		if verified || seen[[2]string{l.Digest, l.DiffID}] {
			continue
		}
		seen[[2]string{l.Digest, l.DiffID}] = true
		var result *splitLayer // stays nil if the layer need not be split
		if !known && !splitting[l.DiffID] {
			splitting[l.DiffID] = true
			result = &splitLayer{}
			t.split[l.DiffID] = result
		}
		group.Go(func() error {
			if err := t.readLayer(ctx, l, result); err != nil {
				return fmt.Errorf("%s: %w", l.name(), err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return t.staging.finish()
}

// readLayer reads a layer's blob, verifies it, and splits the layer into result
// unless that is nil.
func (t *taking) readLayer(ctx context.Context, l layer, result *splitLayer) error {
	if err := t.layers.Acquire(ctx, 1); err != nil {
		return err
	}
	defer t.layers.Release(1)
	blob, err := t.openBlob(ctx, l.Digest)
	if err != nil {
		return err
	}
	defer blob.Close()
	reader := &layerReader{layer: l, limits: t.config.Limits, read: t.job.Step("layer", wire.ShortDigest(l.Digest), l.Size).Add}
	if result != nil {
		err = t.staging.split(ctx, reader, t.encoders, result, blob)
	} else {
		err = reader.verify(ctx, blob, tree.NewRecordWriter(io.Discard))
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	// A blob that is corrupt explains whatever else is wrong.
	if cause := t.checkBlob(ctx, l); cause != nil {
		return cause
	}
	return err
}

// checkBlob reads a blob that gave trouble once more, only for its digest.
func (t *taking) checkBlob(ctx context.Context, l layer) error {
	blob, err := t.openBlob(ctx, l.Digest)
	if err != nil {
		return err
	}
	defer blob.Close()
	got, err := digestOfReader(blob)
	if err == nil && got != l.Digest {
		err = corrupt(got)
		if t.upload(l.Digest) == nil {
			// So that the next push or add brings it again instead of finding it there.
			err = errors.Join(err, t.registry.DropBlob(context.WithoutCancel(ctx), l.Digest))
		}
	}
	return err
}

// makeTree merges the image's layers and stages the index of their tree.
func (t *taking) makeTree(ctx context.Context) (*madeTree, error) {
	records := make([]*recordSource, len(t.image.layers))
	for i, l := range t.image.layers {
		records[i] = &recordSource{open: func() (io.ReadCloser, error) { return t.openRecord(ctx, l.DiffID) }}
	}
	made, err := t.index(ctx, t.staging.dir, records, t.staging.units)
	var refused *tree.EntryError
	if errors.As(err, &refused) {
		return nil, fmt.Errorf("%s: entry %q: %w", t.image.layers[refused.Layer].name(), refused.Entry, refused.Err)
	}
	return made, err
}

func (t *taking) openRecord(ctx context.Context, diffID string) (io.ReadCloser, error) {
	if l := t.split[diffID]; l != nil {
		return openFile(l.record)
	}
	return t.openLayer(ctx, diffID)
}

// publication says all that becomes known with the image.
func (t *taking) publication(made *madeTree) *catalog.Publication {
	p := &catalog.Publication{Repository: t.repository, Platform: t.image.platform, Image: t.row.N, Size: t.image.size(), Tree: made.tree, Statement: made.statement,
		Blobs: []catalog.Blob{{Digest: t.image.config.Digest.String(), MediaType: t.image.config.MediaType, Size: t.image.config.Size}}}
	var placeOf []uint32
	p.Packs, p.Chunks, placeOf = t.staging.news()
	parent := ""
	for _, l := range t.image.layers {
		p.Blobs = append(p.Blobs, catalog.Blob{Digest: l.Digest, MediaType: l.MediaType, Size: l.Size, DiffID: l.DiffID, Chain: l.Chain})
		p.Chains = append(p.Chains, catalog.Chain{Chain: l.Chain, Parent: parent, DiffID: l.DiffID})
		parent = l.Chain
	}
	for diffID, l := range t.split {
		known, fresh := t.staging.layerChunks(l.places, placeOf)
		p.Layers = append(p.Layers, catalog.Layer{DiffID: diffID, Bytes: l.bytes, Entries: l.entries, Known: known, New: fresh})
	}
	return p
}

// publish makes the image ready.
func (t *taking) publish(ctx context.Context, made *madeTree) error {
	made.sign(t.config.Keys, t.image.layers[len(t.image.layers)-1].Chain)
	if err := t.staging.flushed(); err != nil {
		return err
	}
	files := made.files
	for diffID, l := range t.split {
		files = append(files, objects.Staged{Key: objects.LayerKey(diffID), Path: l.record})
	}
	err := t.publisher.Publish(ctx, publish.Objects{Packs: t.staging.packFiles(), Others: files}, func() error { return t.catalog.Publish(ctx, t.publication(made)) })
	if errors.Is(err, catalog.ErrNotFound) {
		return errors.New("it was taken away")
	}
	return err
}
