package attachment

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/attached"
	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/erofs"
	"lighter/format/guess"
	"lighter/format/index"
	"lighter/format/layer"
	"lighter/format/pack"
	"lighter/format/plan"
	"lighter/format/trace"
	"lighter/registries/push"
)

// mapPages is the number of cached pages of the extent map, of 5 kB each.
const mapPages = 1024

// openedTree is an index, with the tables of its layers as readers of the artifact have them.
type openedTree struct {
	extents  *index.Map
	metadata *erofs.Image
	layers   []openedLayer
	files    []*os.File // the map, the metadata image
}

// metadataFile is the metadata image's number in openedTree.files.
const metadataFile = 1

type openedLayer struct {
	table  *layer.Table
	places layer.Places
}

func (t *openedTree) close() (err error) {
	for _, f := range t.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// openIndex opens the index in a directory.
func (t *openedTree) openIndex(dir string, tree chunk.ID) error {
	plain, err := os.Open(indexPath(dir))
	if err != nil {
		return err
	}
	defer plain.Close() // only read
	for _, name := range []string{"map", "metadata"} {
		file, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		t.files = append(t.files, file)
	}
	header, err := index.Receive(bufio.NewReaderSize(plain, 1<<20), tree, t.files[0], t.files[metadataFile])
	if err == nil {
		_, err = t.files[metadataFile].Seek(0, io.SeekStart)
	}
	if err == nil {
		t.extents, err = index.OpenMap(t.files[0], tree, index.NewPages(mapPages))
	}
	if err == nil {
		t.metadata, err = erofs.Open(t.files[metadataFile], header.MetadataSize)
	}
	return err
}

// openTables opens the tables whose blobs are in a directory.
func (t *openedTree) openTables(dir string, blobs []v1.Descriptor) error {
	for i, d := range blobs {
		l, err := t.openTable(push.FilePath(dir, d.Digest))
		if err != nil {
			return fmt.Errorf("open the table of layer %d: %w", i+1, err)
		}
		t.layers = append(t.layers, l)
	}
	return nil
}

func (t *openedTree) openTable(path string) (l openedLayer, err error) {
	blob, err := os.Open(path)
	if err != nil {
		return l, err
	}
	defer blob.Close() // only read
	made, err := attached.ReadTable(blob, t.extents)
	if err != nil {
		return l, err
	}
	if l.table, err = made.Open(); err == nil {
		l.places, err = l.table.Places()
	}
	return l, err
}

// startups makes the startup packs that the recordings and the guess call for.
func (w *work) startups(ctx context.Context, t *openedTree) (made layer.Startups, err error) {
	chunks, err := newSpool(w, t)
	if err != nil {
		return made, err
	}
	defer func() { err = errors.Join(err, chunks.close()) }()
	kept := plan.Sort(nil)
	kept.Add(w.Recordings)
	var guesses []trace.Recording
	if w.Guess {
		of := guess.Image{Metadata: t.metadata, Extents: t.extents, Config: w.Config, Chunk: chunks.chunk}
		if guesses, err = of.Recordings(ctx); err != nil {
			return made, err
		}
	}
	packs, err := plan.NewTree(t.metadata, t.extents).Layout(ctx, kept.Recordings(), guesses, w.Startup)
	if err != nil || len(packs) == 0 {
		return made, err
	}
	if err := chunks.collect(ctx, packs); err != nil {
		return made, err
	}
	made.Units = map[chunk.ID]chunk.Unit{}
	for _, p := range packs {
		if err := w.pack(ctx, &p, chunks, &made); err != nil {
			return made, err
		}
	}
	return made, nil
}

// pack writes a startup pack.
func (w *work) pack(ctx context.Context, p *plan.Pack, chunks *spool, made *layer.Startups) error {
	var id chunk.ID
	named := index.Startup{AtMount: p.AtMount, Triggers: p.Triggers}
	level := zstd.SpeedBestCompression
	if len(w.Recordings) == 0 {
		level = zstd.SpeedBetterCompression // docs/decisions/attached.md
	}
	encoder := compress.UnitEncoder(level, pack.MaxPlain)
	d, err := w.write(attached.MediaTypePack, func(to io.Writer) (err error) {
		writer := pack.NewWriter(to)
		var b pack.UnitBuilder
		for _, refs := range p.Units {
			b.Reset()
			for _, ref := range refs {
				plain, err := chunks.read(ref)
				if err != nil {
					return err
				}
				b.Add(ref.ID, plain)
			}
			unit := b.Encode(nil, encoder)
			if _, err := writer.Add(unit); err != nil {
				return err
			}
			if named.Units = append(named.Units, uint32(len(unit))); ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		id, _, err = writer.Close()
		return err
	})
	if err != nil {
		return err
	}
	named.Pack = id
	for n, refs := range p.Units {
		for _, ref := range refs {
			made.Units[ref.ID] = chunk.Unit{Pack: id, N: uint32(n)}
		}
	}
	made.Packs = append(made.Packs, named)
	w.contents.Packs = append(w.contents.Packs, attached.Pack{Blob: d, Units: named.Units})
	return nil
}

// ReadRecordings reads recordings, as "lighter trace export" writes them.
func ReadRecordings(files ...string) (all []trace.Recording, err error) {
	for _, name := range files {
		info, err := os.Stat(name)
		if err == nil && info.Size() > trace.MaxText {
			err = fmt.Errorf("it has %d bytes: want at most %d", info.Size(), trace.MaxText)
		}
		var text []byte
		if err == nil {
			text, err = os.ReadFile(name)
		}
		var some []trace.Recording
		if err == nil {
			some, err = trace.ParseText(text)
		}
		if err != nil {
			return nil, fmt.Errorf("read the recordings in %s: %w", name, err)
		}
		all = append(all, some...)
	}
	return all, nil
}
