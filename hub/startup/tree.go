package startup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/erofs"
	"lighter/format/index"
	"lighter/format/plan"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/publish"
)

// trees reads the indexes and locations of trees. It is safe for concurrent use.
type trees struct {
	catalog   *catalog.Catalog
	objects   *objects.Store
	publisher *publish.Publisher // has the scratch directory
	sizes     *deviceSizes
}

func newTrees(c *Config) *trees {
	return &trees{catalog: c.Catalog, objects: c.Objects, publisher: c.Publisher, sizes: &c.Bounds.sizes}
}

// deviceSizes caches the device sizes of trees. The zero value is ready to use. It is safe for
// concurrent use.
type deviceSizes struct {
	mu  sync.Mutex // guards the following
	all map[treeOf]int64
}

// treeOf identifies a tree in one domain. Other domains need not have the tree.
type treeOf struct {
	in   *trees
	tree chunk.ID
}

func (s *deviceSizes) get(of treeOf) (size int64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size, known = s.all[of]
	return size, known
}

func (s *deviceSizes) set(of treeOf, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil || len(s.all) >= maxSizes {
		s.all = map[treeOf]int64{}
	}
	s.all[of] = size
}

// deviceSize returns the size of a tree's device in bytes.
func (s *trees) deviceSize(ctx context.Context, tree chunk.ID) (int64, error) {
	of := treeOf{s, tree}
	if size, known := s.sizes.get(of); known {
		return size, nil
	}
	plain, err := s.objects.OpenPlain(ctx, objects.IndexKey(tree))
	if err != nil {
		return 0, err
	}
	defer plain.Close()
	header, err := index.ReceiveHeader(plain, tree)
	if err != nil {
		return 0, err
	}
	s.sizes.set(of, header.DeviceSize)
	return header.DeviceSize, nil
}

// locations reads the current locations of a tree.
func (s *trees) locations(ctx context.Context, tree chunk.ID) (*index.Locations, error) {
	id, err := s.catalog.Starts.Locations(ctx, tree)
	if err != nil {
		return nil, err
	}
	return s.objects.ReadLocations(ctx, id, tree, -1)
}

// openTree is a tree with its index in a scratch directory.
type openTree struct {
	*index.Map
	*plan.Tree
	metadata *erofs.Image
	indexLen int64 // bytes of the index object
	chunks   *chunkReader
	dir      string
	files    []*os.File
}

// open copies a tree's index from the object store to a scratch directory.
func (s *trees) open(ctx context.Context, tree chunk.ID) (t *openTree, err error) {
	dir, err := s.publisher.TempDir("starts")
	if err != nil {
		return nil, err
	}
	t = &openTree{dir: dir, chunks: newChunkReader(s.catalog, s.objects)}
	if err := t.fill(ctx, s.objects, tree); err != nil {
		return nil, errors.Join(fmt.Errorf("open tree %s: %w", tree.Short(), err), t.close())
	}
	return t, nil
}

func (t *openTree) fill(ctx context.Context, o *objects.Store, tree chunk.ID) error {
	from, err := o.Open(ctx, objects.IndexKey(tree))
	if err != nil {
		return err
	}
	defer from.Close()
	t.indexLen = from.Size
	z, err := compress.Reader(from)
	if err != nil {
		return err
	}
	defer z.Close()
	for _, name := range []string{"map", "metadata"} {
		file, err := os.Create(filepath.Join(t.dir, name))
		if err != nil {
			return err
		}
		t.files = append(t.files, file)
	}
	extents, metadata := bufio.NewWriterSize(t.files[0], 64<<10), bufio.NewWriterSize(t.files[1], 256<<10)
	header, err := index.Receive(ctxReader{ctx, z}, tree, extents, metadata)
	if err := errors.Join(err, extents.Flush(), metadata.Flush()); err != nil {
		return err
	}
	if t.Map, err = index.OpenMap(t.files[0], tree, index.NewPages(mapPages)); err != nil {
		return err
	}
	t.metadata, err = erofs.Open(t.files[1], header.MetadataSize)
	t.Tree = plan.NewTree(t.metadata, t.Map)
	return err
}

// close removes the files.
func (t *openTree) close() error {
	for _, file := range t.files {
		_ = file.Close() // removed with the directory
	}
	return os.RemoveAll(t.dir)
}

// ctxReader is a reader that fails once its context is done.
type ctxReader struct {
	ctx context.Context
	io.Reader
}

func (r ctxReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(b)
}
