package direct

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/layer"
	"lighter/format/tree"
	"lighter/store/repository"
)

// limits bound the trees that are made.
var limits = tree.Limits{Entries: 4_000_000, Bytes: 1 << 40}

// format is a format that is that of all layers of an image. read returns a notDirect error if the
// image does not have it.
type format struct {
	word string // that stands for it in configurations and in the file image
	name string // for users
	read func(ctx context.Context, from *repository.Repository, im *read) ([]*layer.Layer, error)
}

// formats are all formats, in the order in which they are looked for by default.
var formats = []format{
	{"tables", "tables of contents", readTables},
	{"soci", "SOCI index", readSOCI},
}

// find reads the tables of an image's layers, in the first format that the image has.
func find(ctx context.Context, from *repository.Repository, im *read, formats []format) ([]*layer.Layer, string, error) {
	var missing []string
	for _, f := range formats {
		layers, err := f.read(ctx, from, im)
		if err == nil {
			return layers, f.word, nil
		}
		if !errors.As(err, new(notDirect)) {
			return nil, "", fmt.Errorf("read the %s: %w", f.name, err)
		}
		missing = append(missing, fmt.Sprintf("no %s: %v", f.name, err))
	}
	return nil, "", notDirect{errors.New(strings.Join(missing, "; "))}
}

// make makes the tree of an image in one of the formats, and keeps it.
func (m *Images) make(
	ctx context.Context, from *repository.Repository, im *read, formats []format,
) (id chunk.ID, err error) {
	if err := m.making.Acquire(ctx, 1); err != nil {
		return id, err
	}
	defer m.making.Release(1)
	layers, word, err := find(ctx, from, im, formats)
	if err != nil {
		return id, err
	}
	var sources []tree.LayerSource
	for _, l := range layers {
		sources = append(sources, l.Source())
	}
	merged, err := tree.Apply(ctx, sources, limits)
	if err != nil {
		return id, notDirect{fmt.Errorf("merge the layers of manifest %s: %w", im.digest, err)}
	}
	fresh, err := os.MkdirTemp(m.kept.dir, newPrefix+"*")
	if err != nil {
		return id, err
	}
	defer os.RemoveAll(fresh)
	if id, err = write(fresh, merged, layers); err != nil {
		return id, fmt.Errorf("make the index of manifest %s: %w", im.digest, err)
	}
	kept := image{Places: []place{{from.String(), im.digest, im.lower}}, DiffIDs: im.diffIDs, Layers: im.layers,
		Format: word}
	b, err := json.Marshal(kept)
	if err == nil {
		err = os.WriteFile(filepath.Join(fresh, "image"), b, 0o600)
	}
	if err == nil {
		err = m.kept.publish(id, fresh, kept)
	}
	return id, err
}

// write writes a tree's index and locations, and its layers' tables, to a directory. A chunk that
// several layers have is read from the lowest one.
func write(dir string, merged *tree.Tree, layers []*layer.Layer) (id chunk.ID, err error) {
	for i, l := range layers {
		err := create(filepath.Join(dir, strconv.Itoa(i)), func(w io.Writer) error {
			_, err := l.Table.WriteTo(w)
			return err
		})
		if err != nil {
			return id, err
		}
	}
	metadata := filepath.Join(dir, "metadata")
	var made *index.Made
	err = create(metadata, func(w io.Writer) (err error) {
		made, err = index.Make(merged, w)
		return err
	})
	if err != nil {
		return id, err
	}
	err = create(filepath.Join(dir, "index"), func(w io.Writer) error {
		file, err := os.Open(metadata)
		if err != nil {
			return err
		}
		defer file.Close()
		return made.Write(w, file)
	})
	if err = errors.Join(err, os.Remove(metadata)); err != nil {
		return id, err
	}
	var places []layer.Places
	for _, l := range layers {
		places = append(places, l.Places())
	}
	locations, err := layer.Locations(made.ID(), made.Refs, places, layer.Startups{})
	if err != nil {
		return id, err
	}
	return made.ID(), os.WriteFile(filepath.Join(dir, "locations"), locations, 0o600)
}

// create writes a new file, through a buffer.
func create(path string, fill func(w io.Writer) error) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(file, 1<<20)
	if err = fill(w); err == nil {
		err = w.Flush()
	}
	return errors.Join(err, file.Close())
}
