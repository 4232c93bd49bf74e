// Package ingest turns an image into chunks and a tree, and publishes them as one.
//
// An Ingester reads the layers: blob → digest → decompressed tar → diffID → entries and chunks. New
// chunks go into units and packs, entries into layer records; all of it is staged as files. Trees
// merges the records into the image's tree and makes its index and locations. Everything is
// published in one step, after every blob, every layer and the tree were verified. A layer is split
// once and a chunk stored once, whichever images have them.
//
// Errors are better than guesses: a layer of an unknown kind, an entry that containerd would not
// unpack, and sizes beyond the limits fail the image.
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

// maxLayersAtOnce bounds the layers that are read at once, of about 20 MB memory each.
const maxLayersAtOnce = 4

// Ingester ingests images. The caller runs one ingestion at a time: two could add the same new
// chunk to the catalog.
type Ingester struct {
	catalog   *catalog.Catalog
	publisher *publish.Publisher
	encoders  *encoder.Pool
	trees     *Trees
	log       *slog.Logger
	layers    *semaphore.Weighted
}

// New returns an ingester. It applies the limits of trees.
func New(c *catalog.Catalog, p *publish.Publisher, e *encoder.Pool, trees *Trees, log *slog.Logger) *Ingester {
	return &Ingester{catalog: c, publisher: p, encoders: e, trees: trees, log: log,
		layers: semaphore.NewWeighted(int64(min(runtime.GOMAXPROCS(0), maxLayersAtOnce)))}
}

// Source has the manifest, config and layers of an image. Its blobs may still be arriving: then a
// read waits.
type Source interface {
	oci.Reader
	// Open opens a blob, whose bytes are not verified. The caller closes it.
	Open(ctx context.Context, digest string) (io.ReadCloser, error)
	// Drop deletes a blob whose bytes are corrupt, so that the next push or copy brings it again.
	Drop(ctx context.Context, digest string) error
	// Wait waits until the whole image is in the registry.
	Wait(ctx context.Context) error
}

var _ Source = registry.Repository{}

// ingestion is the work on one image.
type ingestion struct {
	*Ingester
	row        catalog.Image
	repository string
	source     Source
	progress   *report.Progress
	image      *oci.Image
	staging    *staging
	split      map[string]*splitLayer // new layers, by diffID
}

// Ingest ingests an image and makes it ready. The error is an *oci.NotImageError if the manifest is
// valid and no image.
func (i *Ingester) Ingest(ctx context.Context, row catalog.Image, from Source, progress *report.Progress) error {
	ref, err := wire.ParseName(row.Name)
	if err != nil {
		return err
	}
	defer i.encoders.Ingest()()
	t := &ingestion{Ingester: i, row: row, repository: ref.Repository, source: from, progress: progress,
		split: map[string]*splitLayer{}}
	if t.image, err = oci.Read(ctx, from, row.Digest); err != nil {
		return err
	}
	if t.staging, err = newStaging(i.publisher, i.catalog); err != nil {
		return err
	}
	defer func() {
		if err := t.staging.close(); err != nil { // the next start removes it
			i.log.Error("remove staged files", "image", row.Name, "err", err)
		}
	}()
	if err := t.splitLayers(ctx); err != nil {
		return err
	}
	made, err := t.makeTree(ctx)
	if err != nil {
		return err
	}
	// A ready image must have its name in the registry.
	if err := from.Wait(ctx); err != nil {
		return err
	}
	return t.publish(ctx, made)
}
