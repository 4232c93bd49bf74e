package ingest

import (
	"bufio"
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/index"
	"lighter/format/tree"
	"lighter/hub/catalog"
	"lighter/hub/objects"
)

// madeTree is a tree whose index and locations are staged.
type madeTree struct {
	tree      catalog.Tree
	statement index.Statement
	files     []objects.Staged
}

func (m *madeTree) sign(keys []ed25519.PrivateKey, chain string) {
	m.statement = index.SignAll(keys, chain, m.tree.ID)
}

// unitsOf says where chunks lie, in their order.
type unitsOf func(ctx context.Context, ids []chunk.ID) ([]chunk.Unit, error)

// index merges layers and writes the index of their tree, and its locations, to
// files in dir.
func (s *Service) index(ctx context.Context, dir string, records []*recordSource, units unitsOf) (*madeTree, error) {
	if err := s.merging.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer s.merging.Release(1)
	merged, err := apply(ctx, records, s.config.Limits)
	if err != nil {
		return nil, err
	}
	made, metadata, err := makeIndex(dir, merged)
	if err != nil {
		return nil, err
	}
	defer os.Remove(metadata)
	id := made.ID()
	m := &madeTree{tree: catalog.Tree{ID: id, Files: made.Files, Bytes: made.Bytes, Chunks: made.DistinctChunks, IndexBytes: made.Size()}}
	z := compress.IndexEncoder(nil, made.Size())
	indexPath, locationsPath := filepath.Join(dir, "index"), filepath.Join(dir, "locations")
	m.tree.IndexWire, err = compressTo(indexPath, z, func(w io.Writer) error {
		file, err := os.Open(metadata)
		if err != nil {
			return err
		}
		defer file.Close()
		return made.Write(w, file)
	})
	if err != nil {
		return nil, err
	}
	locations, err := m.locate(ctx, made, units)
	if err != nil {
		return nil, err
	}
	m.tree.Locations = chunk.Sum(locations)
	m.tree.LocationsWire, err = compressTo(locationsPath, z, func(w io.Writer) error {
		_, err := w.Write(locations)
		return err
	})
	m.files = []objects.Staged{{Key: objects.IndexKey(id), Path: indexPath}, {Key: objects.LocationsKey(m.tree.Locations), Path: locationsPath}}
	return m, err
}

// apply merges layers.
func apply(ctx context.Context, records []*recordSource, limits tree.Limits) (*tree.Tree, error) {
	layers := make([]tree.LayerSource, len(records))
	for i, r := range records {
		layers[i] = r
		defer r.close()
	}
	return tree.Apply(ctx, layers, limits)
}

// makeIndex makes the index of a tree. The metadata image is in a file of dir,
// whose name it returns.
func makeIndex(dir string, t *tree.Tree) (*index.Made, string, error) {
	file, err := os.Create(filepath.Join(dir, "metadata"))
	if err != nil {
		return nil, "", fmt.Errorf("stage an index: %w", err)
	}
	b := bufio.NewWriterSize(file, 1<<20)
	made, err := index.Make(t, b)
	if err := errors.Join(err, b.Flush(), file.Close()); err != nil {
		return nil, "", err
	}
	return made, file.Name(), nil
}

// locate makes the locations, and counts the packs and units in them.
func (m *madeTree) locate(ctx context.Context, made *index.Made, units unitsOf) ([]byte, error) {
	locations := index.NewLocations(m.tree.ID)
	packs, distinct := map[chunk.ID]struct{}{}, map[chunk.Unit]struct{}{}
	var ids []chunk.ID
	flush := func() error {
		found, err := units(ctx, ids)
		if err != nil {
			return err
		}
		for _, u := range found {
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
	m.tree.Packs, m.tree.Units = int64(len(packs)), int64(len(distinct))
	return locations.Encode(), nil
}

// compressTo writes what fill gives to a file, compressed, and returns its size
// in bytes.
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

// recordSource reads a layer's record when its turn comes.
type recordSource struct {
	open   func() (io.ReadCloser, error) // of the compressed record
	below  io.ReadCloser
	z      *zstd.Decoder
	reader *tree.RecordReader
}

var _ tree.LayerSource = (*recordSource)(nil)

// Next returns the next entry.
func (r *recordSource) Next() (*tree.Entry, error) {
	if r.reader == nil {
		below, err := r.open()
		if err != nil {
			return nil, err
		}
		r.below = below
		if r.z, err = compress.Reader(below); err != nil {
			return nil, err
		}
		r.reader = tree.NewRecordReader(r.z)
	}
	e, err := r.reader.Next()
	if err == io.EOF {
		r.close()
	}
	return e, err
}

func (r *recordSource) close() {
	if r.z != nil {
		r.z.Close()
		r.z = nil
	}
	if r.below != nil {
		_ = r.below.Close() // it was only read
		r.below = nil
	}
}

// openLayer opens the record of a layer that is known.
func (s *Service) openLayer(ctx context.Context, diffID string) (io.ReadCloser, error) {
	return s.objects.Open(ctx, objects.LayerKey(diffID))
}

func openFile(path string) (io.ReadCloser, error) { return os.Open(path) }
