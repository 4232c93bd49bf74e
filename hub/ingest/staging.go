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

// staging holds all that an image brings with it which the hub does not have
// yet, as files in a directory of its own, until everything was verified. It
// knows each chunk of the image once, whichever layer it came with first.
type staging struct {
	dir     string
	catalog *catalog.Catalog
	syncs   errgroup.Group // flushes finished packs to the disk

	mu     sync.Mutex          // guards the following
	places map[chunk.ID]uint32 // of chunks
	chunks []stagedChunk

	packMu sync.Mutex // guards the following; held while a unit is written
	packs  []stagedPack
	open   *pack.Writer // the last of packs, while it is written
	file   *os.File
}

// stagedChunk is a chunk that some layer of the image has.
type stagedChunk struct {
	id         chunk.ID
	length     uint32
	known      int64 // its number in the catalog, 0 if it is new
	pack, unit uint32
}

type stagedPack struct {
	id    chunk.ID
	size  int64
	path  string
	units []catalog.Unit
}

// flushes bounds how many packs are flushed to the disk at once.
const flushes = 2

func newStaging(p *publish.Publisher, c *catalog.Catalog) (*staging, error) {
	dir, err := p.TempDir("image")
	if err != nil {
		return nil, err
	}
	s := &staging{dir: dir, catalog: c, places: map[chunk.ID]uint32{}}
	s.syncs.SetLimit(flushes)
	return s, nil
}

// path names a file of the staging.
func (s *staging) path(name string) string { return filepath.Join(s.dir, name) }

// close removes all that was not published.
func (s *staging) close() error {
	_ = s.syncs.Wait() // whoever publishes has asked, nobody else wants to know
	if s.file != nil {
		_ = s.file.Close() // an unfinished pack that nobody wants
	}
	return os.RemoveAll(s.dir)
}

// claim notes that the image has a chunk and tells whether that is news, in
// which case the caller sees to it that the chunk gets stored.
func (s *staging) claim(id chunk.ID, length uint32) (place uint32, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if place, claimed := s.places[id]; claimed {
		return place, false
	}
	place = uint32(len(s.chunks))
	s.places[id] = place
	s.chunks = append(s.chunks, stagedChunk{id: id, length: length})
	return place, true
}

// setKnown notes which of the claimed chunks the catalog has.
func (s *staging) setKnown(places []uint32, known map[chunk.ID]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, place := range places {
		c := &s.chunks[place]
		c.known = known[c.id]
	}
}

// addUnit appends an encoded unit, of plain bytes in all, to the current pack,
// and notes that the chunks at places are in it.
func (s *staging) addUnit(encoded []byte, plain int64, places []uint32) error {
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
	s.packs[n].units = append(s.packs[n].units, catalog.Unit{Plain: plain, Stored: int64(len(encoded))})
	s.mu.Lock()
	for _, place := range places {
		s.chunks[place].pack, s.chunks[place].unit = uint32(n), unit
	}
	s.mu.Unlock()
	if s.open.Full() {
		return s.closePack()
	}
	return nil
}

func (s *staging) newPack() error {
	path := s.path(fmt.Sprintf("pack-%d", len(s.packs)))
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("stage a pack: %w", err)
	}
	s.file, s.open = file, pack.NewWriter(file)
	s.packs = append(s.packs, stagedPack{path: path})
	return nil
}

func (s *staging) closePack() error {
	p := &s.packs[len(s.packs)-1]
	file := s.file
	var err error
	p.id, p.size, err = s.open.Close()
	s.open, s.file = nil, nil
	// Publishing waits for the disk; the sooner that starts, the better.
	s.syncs.Go(func() error {
		if err := file.Sync(); err != nil {
			_ = file.Close() // the first error says it
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

// flushed waits until all packs are on the disk. Only the descriptor that wrote a
// file is sure to hear that this failed.
func (s *staging) flushed() error { return s.syncs.Wait() }

// units says where the chunks lie that these are, in their order: in the new
// packs, or where the catalog says. A chunk that nobody has is an error.
func (s *staging) units(ctx context.Context, ids []chunk.ID) ([]chunk.Unit, error) {
	units := make([]chunk.Unit, len(ids))
	var elsewhere []chunk.ID
	for i, id := range ids {
		place, claimed := s.places[id]
		if !claimed || s.chunks[place].known != 0 {
			elsewhere = append(elsewhere, id)
			continue
		}
		c := s.chunks[place]
		units[i] = chunk.Unit{Pack: s.packs[c.pack].id, N: c.unit}
	}
	known, err := s.catalog.Units(ctx, elsewhere)
	if err != nil {
		return nil, err
	}
	for i, id := range ids {
		if !units[i].IsZero() {
			continue
		}
		if units[i] = known[id]; units[i].IsZero() {
			return nil, fmt.Errorf("chunk %s is in no pack", id.Short())
		}
	}
	return units, nil
}

// news returns what of the staging the catalog does not know: packs, chunks,
// and for each claimed chunk its place among these. The chunks are sorted by
// their IDs, which lets a database add a million of them in a third of the time.
func (s *staging) news() (packs []catalog.Pack, chunks []catalog.Chunk, placeOf []uint32) {
	for _, p := range s.packs {
		packs = append(packs, catalog.Pack{ID: p.id, Size: p.size, Units: p.units})
	}
	var fresh []uint32
	for place, c := range s.chunks {
		if c.known == 0 {
			fresh = append(fresh, uint32(place))
		}
	}
	slices.SortFunc(fresh, func(a, b uint32) int { return bytes.Compare(s.chunks[a].id[:], s.chunks[b].id[:]) })
	placeOf = make([]uint32, len(s.chunks))
	chunks = make([]catalog.Chunk, len(fresh))
	for i, place := range fresh {
		c := s.chunks[place]
		placeOf[place] = uint32(i)
		chunks[i] = catalog.Chunk{ID: c.id, Length: c.length, Pack: c.pack, Unit: c.unit}
	}
	return packs, chunks, placeOf
}

// layerChunks turns the claimed places of a layer into what the catalog keeps.
func (s *staging) layerChunks(places, placeOf []uint32) (known []int64, fresh []uint32) {
	slices.Sort(places)
	for _, place := range slices.Compact(places) {
		if n := s.chunks[place].known; n != 0 {
			known = append(known, n)
		} else {
			fresh = append(fresh, placeOf[place])
		}
	}
	return known, fresh
}

// packFiles lists the new packs as objects to be.
func (s *staging) packFiles() []objects.Staged {
	var files []objects.Staged
	for _, p := range s.packs {
		files = append(files, objects.Staged{Key: objects.PackKey(p.id), Path: p.path})
	}
	return files
}
