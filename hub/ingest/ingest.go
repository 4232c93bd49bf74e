// Package ingest turns an image into chunks and a tree, and publishes them as one.
//
// An Ingester reads the layers: blob → digest → decompressed tar → diffID → entries and
// chunks. New chunks go into units and packs, entries into layer records; all of it is staged as
// files. Trees merges the records into the image's tree and makes its index and locations.
// Everything is published in one step, after every blob, every layer and the tree were verified. A
// layer of several images is split once, and a chunk of several layers is stored once. (wait
// describes the exceptions.)
//
// An image fails if it has a layer of an unknown kind, an entry that containerd would not unpack,
// or sizes beyond the limits.
//
// Hazard: the memory of each layer and unit is bounded, but the tree and the list of an image's
// chunks are in memory while its index is made: about 500 bytes an entry and 100 a chunk.
package ingest

import (
	"context"
	"io"
	"log/slog"
	"runtime"

	"golang.org/x/sync/semaphore"

	"lighter/hub/catalog"
	"lighter/hub/encoder"
	"lighter/hub/oci"
	"lighter/hub/publish"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

// maxLayersAtOnce bounds the layers of an image that are read at once, of about 20 MB memory each.
const maxLayersAtOnce = 4

// Ingester ingests images. It is safe for concurrent use.
type Ingester struct {
	// Early has layers that are split before their images are known. It is set before use. nil:
	// there are none.
	Early Early

	catalog   *catalog.Catalog
	publisher *publish.Publisher
	encoders  *encoder.Pool
	trees     *Trees
	log       *slog.Logger
}

// New returns an ingester. It applies the limits of trees.
func New(c *catalog.Catalog, p *publish.Publisher, e *encoder.Pool, trees *Trees, log *slog.Logger) *Ingester {
	return &Ingester{catalog: c, publisher: p, encoders: e, trees: trees, log: log}
}

// Source has the manifest, config and layers of an image.
type Source interface {
	oci.Reader
	// Open opens a blob, whose bytes are not verified. The caller closes it.
	Open(ctx context.Context, digest string) (io.ReadCloser, error)
	// Stores reports whether the hub's own registry stores a blob. If it does not, Open reads the
	// blob from another registry.
	Stores(ctx context.Context, digest string) (bool, error)
	// Drop deletes a blob if its bytes are still corrupt, so that the next push or copy stores it
	// again.
	Drop(ctx context.Context, digest string) error
}

var _ Source = registry.Repository{}

// ingestion is the work on one image.
type ingestion struct {
	*Ingester
	row        catalog.Image
	lease      catalog.Lease
	repository string
	source     Source
	progress   *report.Progress
	layers     *semaphore.Weighted // bounds the layers that are read at once
	image      *oci.Image
	staging    *staging
	before     catalog.Collections    // the count of collections before the catalog was first asked
	split      map[string]*splitLayer // new layers, by diffID
}

// Prepared is an ingested image that is not published yet. Its objects are staged as files. The
// caller closes it.
type Prepared struct {
	Image catalog.Image

	ingestion *ingestion
	made      *madeTree
}

// Prepare ingests an image for the owner of a lease. The error is an *oci.NotImageError if the
// manifest is valid but is not an image, catalog.ErrLost if the lease was lost, and
// catalog.ErrCollected if a collection has removed something that the image needs.
func (i *Ingester) Prepare(
	ctx context.Context, row catalog.Image, from Source, lease catalog.Lease, progress *report.Progress,
) (*Prepared, error) {
	ref, err := wire.ParseName(row.Name)
	if err != nil {
		return nil, err
	}
	defer i.encoders.Ingest()()
	t := &ingestion{Ingester: i, row: row, lease: lease, repository: ref.Repository, source: from, progress: progress,
		layers: semaphore.NewWeighted(int64(min(runtime.GOMAXPROCS(0), maxLayersAtOnce))),
		split:  map[string]*splitLayer{}}
	if t.image, err = oci.Read(ctx, from, row.Digest); err != nil {
		return nil, err
	}
	if t.before, err = i.catalog.Collections(ctx); err != nil {
		return nil, err
	}
	if t.staging, err = newStaging(i.publisher, i.catalog); err != nil {
		return nil, err
	}
	p := &Prepared{Image: row, ingestion: t}
	if p.made, err = t.known(ctx); err == nil && p.made == nil {
		if err = t.splitLayers(ctx); err == nil {
			p.made, err = t.makeTree(ctx)
		}
	}
	if err != nil {
		p.Close()
		return nil, i.trees.collected(ctx, t.before, err)
	}
	return p, nil
}

// Publish makes the image ready. Its name has to be in the registry. The error is
// catalog.ErrNotFound if the image was removed, catalog.ErrLost if the lease was lost, and
// catalog.ErrCollected if a collection has removed something that the image needs. Then the caller
// prepares the image again.
func (p *Prepared) Publish(ctx context.Context) error { return p.ingestion.publish(ctx, p.made) }

// Close removes the staged files.
func (p *Prepared) Close() {
	if err := p.ingestion.staging.close(); err != nil { // the next start removes them
		p.ingestion.log.Error("cannot remove staged files", "image", p.Image.Name, "err", err)
	}
}
