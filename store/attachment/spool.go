package attachment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/layer"
	"lighter/format/plan"
	"lighter/store"
)

const (
	// rangesAtOnce is how many units are read at a time for startup packs.
	rangesAtOnce = 4
	// maxGuessed bounds the file of chunks while the guess reads, in bytes.
	maxGuessed = 1 << 30
)

// spool reads chunks from the layers of an image, and keeps them in a file, so that few units are
// decoded twice. Chunks are verified each time they are read. chunk and collect are not for
// concurrent use.
type spool struct {
	work *work
	tree *openedTree
	file *os.File

	mu     sync.Mutex // guards the following
	size   int64
	places map[chunk.ID]int64 // offsets in file
}

func newSpool(w *work, t *openedTree) (*spool, error) {
	file, err := os.CreateTemp(w.dir, "chunks-*")
	return &spool{work: w, tree: t, file: file, places: map[chunk.ID]int64{}}, err
}

func (s *spool) close() error { return errors.Join(s.file.Close(), os.Remove(s.file.Name())) }

// chunk returns a chunk for the guess. It keeps all chunks of the unit: the guess often reads the
// files of a directory, but in another order.
func (s *spool) chunk(ctx context.Context, _ int64, ref chunk.Ref) ([]byte, error) {
	if _, kept := s.places[ref.ID]; kept {
		return s.read(ref)
	}
	u, found := s.unit(ref.ID)
	if !found {
		return nil, fmt.Errorf("chunk %s: no layer has it: %w", ref.ID.Short(), chunk.ErrNotFound)
	}
	batch, err := s.decode(ctx, u)
	if err != nil {
		return nil, err
	}
	if s.size > maxGuessed {
		s.size = 0
		clear(s.places)
	}
	for i := range batch.Len() {
		plain, err := batch.Chunk(i)
		if err == nil {
			err = s.add(batch.Ref(i).ID, plain)
		}
		if err != nil {
			return nil, err
		}
	}
	return batch.Lookup(ref.ID)
}

// collect reads the chunks of packs that are not kept yet, each unit once.
func (s *spool) collect(ctx context.Context, packs []plan.Pack) error {
	wanted := map[unitOf][]chunk.ID{}
	for _, p := range packs {
		for _, ref := range slices.Concat(p.Units...) {
			if _, kept := s.places[ref.ID]; kept {
				continue
			}
			if u, found := s.unit(ref.ID); found {
				wanted[u] = append(wanted[u], ref.ID)
			}
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(rangesAtOnce)
	for u, ids := range wanted {
		group.Go(func() error { return s.collectUnit(ctx, u, ids) })
	}
	return group.Wait()
}

func (s *spool) collectUnit(ctx context.Context, u unitOf, ids []chunk.ID) error {
	batch, err := s.decode(ctx, u)
	if err != nil {
		return err
	}
	for _, id := range ids {
		plain, err := batch.Lookup(id)
		if err == nil {
			err = s.add(id, plain)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unitOf is a unit of a layer.
type unitOf struct {
	layer int
	n     uint32
}

// unit returns the unit that has a chunk.
func (s *spool) unit(id chunk.ID) (unitOf, bool) {
	for i, l := range s.tree.layers {
		if n, found := l.places.Units[id]; found {
			return unitOf{i, n}, true
		}
	}
	return unitOf{}, false
}

// decode reads a unit from the registry, and decodes it.
func (s *spool) decode(ctx context.Context, of unitOf) (batch *layer.Batch, err error) {
	u, err := s.tree.layers[of.layer].table.Unit(of.n)
	if err != nil {
		return nil, err
	}
	err = s.work.From.Range(ctx, s.work.Layers[of.layer], u.Offset, u.Stored, func(a store.Answer) error {
		b, err := io.ReadAll(io.LimitReader(a.Body, u.Stored))
		if err == nil {
			batch, err = u.Decode(b)
		}
		return err
	})
	return batch, err
}

// add keeps a chunk.
func (s *spool) add(id chunk.ID, plain []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, kept := s.places[id]; kept {
		return nil
	}
	if _, err := s.file.WriteAt(plain, s.size); err != nil {
		return err
	}
	s.places[id] = s.size
	s.size += int64(len(plain))
	return nil
}

// read returns a chunk that is kept.
func (s *spool) read(ref chunk.Ref) ([]byte, error) {
	at, kept := s.places[ref.ID]
	if !kept {
		return nil, fmt.Errorf("chunk %s: %w", ref.ID.Short(), chunk.ErrNotFound)
	}
	plain := make([]byte, ref.Length)
	if _, err := s.file.ReadAt(plain, at); err != nil {
		return nil, err
	}
	return plain, ref.Check(plain)
}
