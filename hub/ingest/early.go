package ingest

import (
	"context"
	"io"

	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/publish"
)

// PreparedLayer is a layer that was split before its image is known. It is not published yet. Its
// objects are staged as files. The caller closes it.
type PreparedLayer struct {
	Digest string // of the blob

	ingester *Ingester
	staging  *staging
	split    splitLayer
	diffID   string
	before   catalog.Collections
}

// PrepareLayer splits a layer that arrives in blob. An error may also say that the blob is no
// layer.
func (i *Ingester) PrepareLayer(ctx context.Context, blob io.Reader) (*PreparedLayer, error) {
	defer i.encoders.Ingest()()
	p := &PreparedLayer{ingester: i}
	var err error
	if p.before, err = i.catalog.Collections(ctx); err != nil {
		return nil, err
	}
	if p.staging, err = newStaging(i.publisher, i.catalog); err != nil {
		return nil, err
	}
	reader := &layerReader{limits: i.trees.limits, onRead: func(int) {}}
	if err = p.staging.split(ctx, reader, i.encoders, &p.split, blob); err == nil {
		err = p.staging.finish()
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	p.Digest, p.diffID = digestOf(reader.blobSum), digestOf(reader.tarSum)
	return p, nil
}

// Publish makes the layer known, so that images with its blob need not split it. Until such an
// image is ready, a collection may remove the layer. The error is catalog.ErrCollected if a
// collection has removed something that the layer needs.
func (p *PreparedLayer) Publish(ctx context.Context) error {
	if err := p.staging.flushed(); err != nil {
		return err
	}
	files := append(p.staging.packFiles(), objects.Staged{Key: objects.LayerKey(p.diffID), Path: p.split.record})
	chunks, position := p.staging.fresh()
	known, fresh := p.staging.layerChunks(p.split.chunks, position)
	return p.ingester.publisher.Publish(ctx, publish.Objects{Staged: files}, func(claim catalog.Claim) error {
		return p.ingester.catalog.PublishLayer(ctx, &catalog.Publication{Claim: claim, Collections: p.before,
			Packs: p.staging.packs, Chunks: chunks, Blobs: []catalog.Blob{{Digest: p.Digest, DiffID: p.diffID}},
			Layers: []catalog.Layer{{DiffID: p.diffID, Bytes: p.split.bytes, Entries: p.split.entries, Known: known,
				New: fresh}}})
	})
}

// Close removes the staged files.
func (p *PreparedLayer) Close() {
	if err := p.staging.close(); err != nil { // the next start removes them
		p.ingester.log.Error("cannot remove staged files", "err", err)
	}
}

// Early are the layers that are being split before their images are known.
type Early interface {
	// Splits reports whether the layer with this blob is being split.
	Splits(digest string) bool
	// Wait waits while the layer with this blob is being split. It calls onRead with the numbers of
	// bytes that have been read.
	Wait(ctx context.Context, digest string, onRead func(n int))
}
