package ingest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/pack"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/publish"
)

// staging has an image's new chunks, as packs in a directory, until everything is verified. It
// lists each chunk of the image once, even if several layers have it.
type staging struct {
	dir     string
	catalog *catalog.Catalog
	numbers numbersOf      // tells which chunks are known and need not be stored
	syncs   errgroup.Group // syncs finished packs to the disk

	mu        sync.Mutex          // guards the following
	positions map[chunk.ID]uint32 // in chunks
	chunks    []stagedChunk

	packMu sync.Mutex // guards the following; held while a unit is written
	packs  []catalog.Pack
	open   *pack.Writer // writes the last of packs; nil if that pack is finished
	file   *os.File
}

// numbersOf returns the catalog's numbers of those chunks that it knows.
type numbersOf func(ctx context.Context, ids []chunk.ID) (map[chunk.ID]int64, error)

// stagedChunk is a chunk of the image.
type stagedChunk struct {
	catalog.Chunk       // Pack and Unit are set only if the chunk is new
	known         int64 // its number in the catalog; 0 if it is new
}

// syncsAtOnce bounds the packs that are synced to the disk at once.
const syncsAtOnce = 2

func newStaging(p *publish.Publisher, c *catalog.Catalog) (*staging, error) {
	dir, err := p.TempDir("image")
	if err != nil {
		return nil, err
	}
	s := &staging{dir: dir, catalog: c, numbers: c.Numbers, positions: map[chunk.ID]uint32{}}
	s.syncs.SetLimit(syncsAtOnce)
	return s, nil
}

// path returns the path of a staged file.
func (s *staging) path(name string) string { return filepath.Join(s.dir, name) }

// packPath returns the path of pack n.
func (s *staging) packPath(n int) string { return s.path(fmt.Sprintf("pack-%d", n)) }

// close removes the directory.
func (s *staging) close() error {
	_ = s.syncs.Wait() // flushed reports the error to a publication
	if s.file != nil {
		_ = s.file.Close() // an unfinished pack
	}
	return os.RemoveAll(s.dir)
}

// list adds a chunk to the image's list, unless it is there, and returns its position. If isNew is
// true, the caller has to pass the chunk to a unitWriter.
func (s *staging) list(id chunk.ID, length uint32) (position uint32, isNew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if position, listed := s.positions[id]; listed {
		return position, false
	}
	position = uint32(len(s.chunks))
	s.positions[id] = position
	s.chunks = append(s.chunks, stagedChunk{Chunk: catalog.Chunk{ID: id, Length: length}})
	return position, true
}

// setKnown records the numbers of those listed chunks that the catalog has.
func (s *staging) setKnown(positions []uint32, known map[chunk.ID]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, position := range positions {
		c := &s.chunks[position]
		c.known = known[c.ID]
	}
}

// addUnit appends an encoded unit to the current pack. plain is the unit's size before compression,
// in bytes. positions has the positions of its chunks in the list.
func (s *staging) addUnit(encoded []byte, plain int64, positions []uint32) error {
	s.packMu.Lock()
	defer s.packMu.Unlock()
	if s.open == nil {
		if err := s.newPack(); err != nil {
			return err
		}
	}
	unit, err := s.open.Add(encoded)
	if err != nil {
		return err
	}
	n := len(s.packs) - 1
	s.packs[n].Units = append(s.packs[n].Units, catalog.Unit{Plain: plain, Stored: int64(len(encoded))})
	s.mu.Lock()
	for _, position := range positions {
		s.chunks[position].Pack, s.chunks[position].Unit = uint32(n), unit
	}
	s.mu.Unlock()
	if s.open.Full() {
		return s.closePack()
	}
	return nil
}

func (s *staging) newPack() error {
	file, err := os.Create(s.packPath(len(s.packs)))
	if err != nil {
		return fmt.Errorf("stage a pack: %w", err)
	}
	s.file, s.open = file, pack.NewWriter(file)
	s.packs = append(s.packs, catalog.Pack{})
	return nil
}

func (s *staging) closePack() error {
	p := &s.packs[len(s.packs)-1]
	file := s.file
	var err error
	p.ID, p.Size, err = s.open.Close()
	s.open, s.file = nil, nil
	// Publishing waits for the sync, so it begins early.
	s.syncs.Go(func() error {
		if err := file.Sync(); err != nil {
			_ = file.Close() // the first error is reported
			return fmt.Errorf("stage a pack: %w", err)
		}
		return file.Close()
	})
	return err
}

// finish closes the last pack. Nothing may be added afterwards.
func (s *staging) finish() error {
	s.packMu.Lock()
	defer s.packMu.Unlock()
	if s.open == nil {
		return nil
	}
	return s.closePack()
}

// flushed waits until all packs are on the disk. The descriptors that wrote the packs are synced:
// the kernel may not report a write error to another descriptor.
func (s *staging) flushed() error { return s.syncs.Wait() }

// units returns the units of chunks: in the new packs, or as the catalog says.
func (s *staging) units(ctx context.Context, ids []chunk.ID) (map[chunk.ID]chunk.Unit, error) {
	isNew := func(id chunk.ID) bool {
		position, listed := s.positions[id]
		return listed && s.chunks[position].known == 0
	}
	units, err := s.catalog.Units(ctx, slices.DeleteFunc(slices.Clone(ids), isNew))
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if isNew(id) {
			c := s.chunks[s.positions[id]]
			units[id] = chunk.Unit{Pack: s.packs[c.Pack].ID, N: c.Unit}
		}
	}
	return units, nil
}

// fresh returns the listed chunks that the catalog does not have. freshPosition maps a chunk's
// position in the list to its position in chunks. The chunks are sorted by ID, because the database
// then inserts a million of them in a third of the time.
func (s *staging) fresh() (chunks []catalog.Chunk, freshPosition []uint32) {
	var fresh []uint32
	for position, c := range s.chunks {
		if c.known == 0 {
			fresh = append(fresh, uint32(position))
		}
	}
	slices.SortFunc(fresh, func(a, b uint32) int { return bytes.Compare(s.chunks[a].ID[:], s.chunks[b].ID[:]) })
	freshPosition = make([]uint32, len(s.chunks))
	for i, position := range fresh {
		freshPosition[position] = uint32(i)
		chunks = append(chunks, s.chunks[position].Chunk)
	}
	return chunks, freshPosition
}

// layerChunks returns the chunks of a layer as the catalog has them: the numbers of known chunks,
// and the positions of new ones.
func (s *staging) layerChunks(positions, freshPosition []uint32) (known []int64, fresh []uint32) {
	slices.Sort(positions)
	for _, position := range slices.Compact(positions) {
		if n := s.chunks[position].known; n != 0 {
			known = append(known, n)
		} else {
			fresh = append(fresh, freshPosition[position])
		}
	}
	return known, fresh
}

// packFiles returns the new packs as objects to publish.
func (s *staging) packFiles() []objects.Staged {
	var files []objects.Staged
	for n, p := range s.packs {
		files = append(files, objects.Staged{Key: objects.PackKey(p.ID), Path: s.packPath(n)})
	}
	return files
}
