package ingest

import (
	"bufio"
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/index"
	"lighter/format/tree"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/publish"
)

const (
	mergesAtOnce = 1  // each has a tree in memory: 1 GiB and more for the largest
	maxRequested = 32 // trees requested by nodes at a time; further requests get report.ErrBusy
)

// Trees makes trees from layer records. It is safe for concurrent use.
type Trees struct {
	// MaxDerived bounds the trees that are kept only because nodes requested them, and that nobody
	// holds. It is set before Run.
	MaxDerived int

	catalog   *catalog.Catalog
	objects   *objects.Store
	publisher *publish.Publisher
	limits    tree.Limits
	keys      []ed25519.PrivateKey // each signs
	log       *slog.Logger

	life context.Context // of requested trees; ends with the hub

	*Bounds
	flights singleflight.Group // requested trees, by chain
}

// Bounds bounds the trees that a process makes at a time, of all its domains.
type Bounds struct {
	merging   *semaphore.Weighted // trees that are being merged, requested or not
	requested *semaphore.Weighted // the requested tree that is being made
	waiting   *semaphore.Weighted // requested trees that are being made or wait
}

// NewBounds returns the bounds of a process.
func NewBounds() *Bounds {
	return &Bounds{merging: semaphore.NewWeighted(mergesAtOnce), requested: semaphore.NewWeighted(1),
		waiting: semaphore.NewWeighted(maxRequested)}
}

// NewTrees returns a maker of trees within the limits and bounds, signed with the keys. life ends
// with the hub.
func NewTrees(
	life context.Context, c *catalog.Catalog, o *objects.Store, p *publish.Publisher, limits tree.Limits, b *Bounds,
	keys []ed25519.PrivateKey, log *slog.Logger,
) *Trees {
	return &Trees{MaxDerived: maxDerived, life: life, catalog: c, objects: o, publisher: p, limits: limits,
		keys: keys, log: log, Bounds: b}
}

// Run waits until the hub ends, and then until the requested tree that is being made has ended.
func (t *Trees) Run() error {
	<-t.life.Done()
	if err := t.requested.Acquire(context.WithoutCancel(t.life), 1); err != nil {
		return err
	}
	t.requested.Release(1) // no further tree is made: the context has ended
	return nil
}

// madeTree is a tree whose index and locations are staged.
type madeTree struct {
	tree      catalog.Tree
	statement index.Statement
	files     []objects.Staged // none if the tree is known
	packs     []chunk.ID       // that the locations name
}

func (m *madeTree) sign(keys []ed25519.PrivateKey, chain string) {
	m.statement = index.SignAll(keys, chain, m.tree.ID)
}

// unitsOf returns the units of chunks.
type unitsOf func(ctx context.Context, ids []chunk.ID) (map[chunk.ID]chunk.Unit, error)

// make merges layers, and stages the index of their tree and its locations in dir.
func (t *Trees) make(ctx context.Context, dir string, records []Record, units unitsOf) (*madeTree, error) {
	if err := t.merging.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer t.merging.Release(1)
	made, metadata, err := t.makeIndex(ctx, dir, records)
	if err != nil {
		return nil, err
	}
	defer os.Remove(metadata)
	id := made.ID()
	m := &madeTree{tree: catalog.Tree{
		ID: id, Files: made.Files, Bytes: made.Bytes, Chunks: made.DistinctChunks, IndexBytes: made.Size()}}
	indexPath, locationsPath := filepath.Join(dir, "index"), filepath.Join(dir, "locations")
	// Compressing the index and looking up the chunks take about the same time.
	var group errgroup.Group
	group.Go(func() (err error) {
		z := compress.IndexEncoder(nil, made.Size())
		m.tree.IndexWire, err = compressTo(indexPath, z, func(w io.Writer) error {
			file, err := os.Open(metadata)
			if err != nil {
				return err
			}
			defer file.Close()
			return made.Write(w, file)
		})
		return err
	})
	group.Go(func() error {
		locations, err := m.locate(ctx, made, units)
		if err != nil {
			return err
		}
		m.tree.Locations = chunk.Sum(locations)
		z := compress.IndexEncoder(nil, made.Size())
		m.tree.LocationsWire, err = compressTo(locationsPath, z, func(w io.Writer) error {
			_, err := w.Write(locations)
			return err
		})
		return err
	})
	err = group.Wait()
	m.files = []objects.Staged{
		{Key: objects.IndexKey(id), Path: indexPath},
		{Key: objects.LocationsKey(m.tree.Locations), Path: locationsPath},
	}
	return m, err
}

// known returns the tree of a chain if its index and locations are stored, otherwise nil.
func (t *Trees) known(ctx context.Context, chain string) (*madeTree, error) {
	statement, err := t.catalog.Statement(ctx, chain)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m := &madeTree{}
	if m.tree, err = t.catalog.Tree(ctx, statement.Tree); err != nil {
		return nil, err
	}
	for key, bytes := range map[string]int64{objects.IndexKey(m.tree.ID): m.tree.IndexWire,
		objects.LocationsKey(m.tree.Locations): m.tree.LocationsWire} {
		size, err := t.objects.Size(ctx, key)
		if errors.Is(err, objects.ErrNotFound) || err == nil && size != bytes {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return m, nil
}

// ID makes the tree of layers again and returns its ID. Files are written to dir.
func (t *Trees) ID(ctx context.Context, dir string, records []Record) (chunk.ID, error) {
	if err := t.merging.Acquire(ctx, 1); err != nil {
		return chunk.ID{}, err
	}
	defer t.merging.Release(1)
	made, metadata, err := t.makeIndex(ctx, dir, records)
	if err != nil {
		return chunk.ID{}, err
	}
	return made.ID(), os.Remove(metadata)
}

// makeIndex merges layers and makes the index of their tree. The metadata image is in a file of
// dir, whose path it returns.
func (t *Trees) makeIndex(ctx context.Context, dir string, records []Record) (*index.Made, string, error) {
	layers := make([]tree.LayerSource, len(records))
	for i := range records {
		layers[i] = &records[i]
		defer records[i].Close()
	}
	merged, err := tree.Apply(ctx, layers, t.limits)
	if err != nil {
		return nil, "", err
	}
	file, err := os.Create(filepath.Join(dir, "metadata"))
	if err != nil {
		return nil, "", fmt.Errorf("stage an index: %w", err)
	}
	b := bufio.NewWriterSize(file, 1<<20)
	made, err := index.Make(merged, b)
	return made, file.Name(), errors.Join(err, b.Flush(), file.Close())
}

// locate makes the locations, and counts their packs and units.
func (m *madeTree) locate(ctx context.Context, made *index.Made, units unitsOf) ([]byte, error) {
	locations := index.NewLocations(m.tree.ID)
	packs, distinct := map[chunk.ID]struct{}{}, map[chunk.Unit]struct{}{}
	var ids []chunk.ID
	flush := func() error {
		found, err := units(ctx, ids)
		if err != nil {
			return err
		}
		for _, id := range ids {
			u := found[id]
			if u.IsZero() {
				return fmt.Errorf("chunk %s: %w", id.Short(), errNoPack)
			}
			locations.Add(u)
			packs[u.Pack], distinct[u] = struct{}{}, struct{}{}
		}
		ids = ids[:0]
		return nil
	}
	err := made.Refs(func(_ int64, ref chunk.Ref) error {
		if ids = append(ids, ref.ID); len(ids) < batchChunks {
			return nil
		}
		return flush()
	})
	if err := errors.Join(err, flush()); err != nil {
		return nil, fmt.Errorf("locate the chunks: %w", err)
	}
	m.packs = slices.Collect(maps.Keys(packs))
	m.tree.Packs, m.tree.Units = int64(len(packs)), int64(len(distinct))
	return locations.Encode(), nil
}

// errNoPack means that the catalog does not have a chunk.
var errNoPack = errors.New("it is in no pack")

// collected returns an error that wraps catalog.ErrCollected if err says that something is missing,
// and a collection may have removed it: the count of collections has changed since before.
// Otherwise collected returns err.
func (t *Trees) collected(ctx context.Context, before catalog.Collections, err error) error {
	if !errors.Is(err, objects.ErrNotFound) && !errors.Is(err, errNoPack) && !errors.Is(err, catalog.ErrNotFound) {
		return err
	}
	if now, countErr := t.catalog.Collections(ctx); countErr != nil || now == before {
		return err
	}
	return fmt.Errorf("%w: %w", catalog.ErrCollected, err)
}

// compressTo compresses what fill writes to a new file, and returns the file's size in bytes.
func compressTo(path string, z *zstd.Encoder, fill func(w io.Writer) error) (int64, error) {
	file, err := os.Create(path)
	if err != nil {
		return 0, fmt.Errorf("stage an index: %w", err)
	}
	defer file.Close()
	z.Reset(file)
	if err := cmp.Or(errors.Join(fill(z), z.Close()), file.Sync()); err != nil {
		return 0, fmt.Errorf("stage an index: %w", err)
	}
	return file.Seek(0, io.SeekCurrent)
}

// openRecord opens the record of a known layer. The caller closes it.
func (t *Trees) openRecord(ctx context.Context, diffID string) (io.ReadCloser, error) {
	return t.objects.OpenPlain(ctx, objects.LayerKey(diffID))
}
