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

	"lighter/format/attached"
	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/layer"
	"lighter/format/layer/audit"
	"lighter/format/tree"
	"lighter/store/repository"
)

// limits bound the trees that are made.
var limits = tree.Limits{Entries: 4_000_000, Bytes: 1 << 40}

// mapped is a layer with its table.
type mapped struct {
	*layer.Layer
	hides func(name string) bool // as in audit.Claims
	whole bool                   // the table was made of the whole layer, whose diffID was checked
}

// tables reads the tables of an image's layers.
type tables func(ctx context.Context, m *Images, from *repository.Repository, im *read) ([]*mapped, error)

// format is a format that is that of all layers of an image.
type format struct {
	word string // that stands for it in configurations and in the file image
	name string // for users
	// counts says why the format does not count for a repository; nil: it counts.
	counts func(m *Images, repository string) error
	tables tables // nil: the format has no tables that have to be verified
	// make writes a tree's index, its locations and its layers' tables to an empty directory. The
	// error is notDirect if the image does not have the format.
	make func(ctx context.Context, m *Images, from *repository.Repository, im *read, dir string) (made, error)
}

// made is a tree that was made, or that was found to be made.
type made struct {
	tree    chunk.ID
	sums    []chunk.ID // the sum of each layer's table (audit.Sum)
	whole   []bool     // as mapped.whole, of each layer
	first   []firstPack
	packs   []attached.Pack // startup packs
	packsIn string          // their repository
	by      string          // the key that has signed the index, as index.FormatKey has it
}

// formats are all formats, in the order in which they are looked for by default.
var formats = []format{
	{"attached", "attached index", (*Images).hasKeys, nil, makeAttached},
	{"tables", "tables of contents", (*Images).believes, readTables, makeOf(readTables)},
	{"soci", "SOCI index", (*Images).believes, readSOCI, makeOf(readSOCI)},
}

// make makes the tree of an image, in the first of the formats that the image has, and keeps it.
func (m *Images) make(
	ctx context.Context, from *repository.Repository, im *read, formats []format,
) (id chunk.ID, err error) {
	im.stores = true // containers will read it
	checking, stop := context.WithCancel(ctx)
	defer stop()
	ranges := begin(func() error { return checkRanges(checking, from, im.layers) })
	check := func() error {
		if err := im.check(); err != nil {
			return checkError{err}
		}
		if err := ranges(); err != nil {
			return checkError{err}
		}
		return nil
	}
	var missing reasons
	var failed error
	for _, f := range formats {
		id, err := m.makeAs(ctx, from, im, f, check)
		switch {
		case err == nil:
			return id, nil
		case errors.Is(err, repository.ErrNoRanges):
			return id, notDirect{err}
		case ctx.Err() != nil:
			if cause := context.Cause(ctx); !errors.Is(err, cause) {
				err = cause
			}
			return id, fmt.Errorf("read the %s in %s: %w", f.name, from, err)
		case errors.As(err, new(checkError)):
			return id, err
		}
		switch {
		case !errors.As(err, new(notDirect)):
			failed = errors.Join(failed, fmt.Errorf("read the %s: %w", f.name, err))
		case !errors.Is(err, errUnverified):
			missing = append(missing, fmt.Errorf("no %s: %w", f.name, err))
		case !errors.Is(missing, errUnverified):
			missing = append(missing, err)
		}
	}
	if failed != nil {
		return id, failed
	}
	return id, notDirect{missing}
}

// checkError says that the registry does not let this node read an image, or a part of a layer.
type checkError struct{ error }

func (e checkError) Unwrap() error { return e.error }

// reasons say, one after the other, why an image does not have one of the formats.
type reasons []error

func (r reasons) Error() string {
	var all []string
	for _, err := range r {
		all = append(all, err.Error())
	}
	return strings.Join(all, "; ")
}

func (r reasons) Unwrap() []error { return r }

// begin runs fn in the background, and returns what waits for its error.
func begin(fn func() error) (wait func() error) {
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = fn()
	}()
	return func() error { <-done; return err }
}

// makeAs makes the tree of an image that has a format, and keeps it if check returns nil.
func (m *Images) makeAs(
	ctx context.Context, from *repository.Repository, im *read, f format, check func() error,
) (id chunk.ID, err error) {
	fresh, err := os.MkdirTemp(m.kept.dir, newPrefix+"*")
	if err != nil {
		return id, err
	}
	defer os.RemoveAll(fresh)
	made, err := f.make(ctx, m, from, im, fresh)
	if err == nil {
		err = check()
	}
	if err != nil {
		return id, err
	}
	kept := image{Places: []place{{from.String(), im.digest, im.lower}}, DiffIDs: im.diffIDs, Layers: im.layers,
		Format: f.word, Tables: made.sums, First: made.first, Packs: made.packs, PacksIn: made.packsIn, By: made.by,
		Config: &im.config}
	m.noteWhole(&kept, made.whole)
	if err := m.mayStart(kept); err != nil {
		return id, err
	}
	b, err := json.Marshal(kept)
	if err == nil {
		err = create(filepath.Join(fresh, "image"), func(w io.Writer) error {
			_, err := w.Write(b)
			return err
		})
	}
	if err == nil {
		err = m.kept.publish(made.tree, fresh, kept, func(old *image) bool { return m.replaces(&kept, old) })
	}
	return made.tree, err
}

// makeOf returns what makes a tree of the tables of an image's layers.
func makeOf(all tables) func(context.Context, *Images, *repository.Repository, *read, string) (made, error) {
	return func(
		ctx context.Context, m *Images, from *repository.Repository, im *read, dir string,
	) (made, error) {
		if err := m.mayBeVerified(place{Repository: from.String(), Manifest: im.digest}, im); err != nil {
			return made{}, err
		}
		end, err := m.turns.wait(ctx, from) // tables are large
		if err != nil {
			return made{}, err
		}
		defer end()
		mapped, err := all(ctx, m, from, im)
		if err != nil {
			return made{}, err
		}
		return m.lay(ctx, im, dir, mapped)
	}
}

// lay makes the tree of an image's layers, and writes what format.make writes.
func (m *Images) lay(ctx context.Context, im *read, dir string, mapped []*mapped) (made, error) {
	var layers []*layer.Layer
	var sources []tree.LayerSource
	var whole []bool
	for _, l := range mapped {
		whole = append(whole, l.whole)
		layers = append(layers, l.Layer)
		sources = append(sources, l.Source())
	}
	sums := make([]chunk.ID, len(layers))
	written := begin(func() (err error) { // beside the rest
		for i, l := range layers {
			if sums[i], err = audit.Sum(l.Source()); err != nil {
				return err
			}
		}
		return writeTables(dir, layers)
	})
	merged, err := tree.Apply(ctx, sources, limits)
	if err != nil {
		_ = written() // they are of no use
		return made{}, notDirect{fmt.Errorf("merge the layers of manifest %s: %w", im.digest, err)}
	}
	done, err := write(dir, merged, layers, written)
	if err != nil {
		return made{}, fmt.Errorf("make the index of manifest %s: %w", im.digest, err)
	}
	done.sums, done.whole = sums, whole
	return done, nil
}

// writeTables writes the layers' tables to a directory.
func writeTables(dir string, layers []*layer.Layer) error {
	for i, l := range layers {
		err := create(tablePath(dir, i), func(w io.Writer) error {
			_, err := l.Table.WriteTo(w)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// write writes a tree's index and locations to the directory of its layers' tables. A chunk that
// several layers have is read from the lowest one. tables waits until the tables are written.
func write(dir string, merged *tree.Tree, layers []*layer.Layer, tables func() error) (m made, err error) {
	var made *index.Made
	err = createFile(filepath.Join(dir, "index"), func(file *os.File) (err error) {
		made, err = index.MakeAt(merged, file)
		return err
	})
	if err = errors.Join(err, tables()); err != nil {
		return m, err
	}
	var places []layer.Places
	for _, l := range layers {
		places = append(places, l.Places())
	}
	m.tree = made.ID()
	var startups layer.Startups
	if m.first, startups, err = writeFirst(dir, layers); err != nil {
		return m, err
	}
	locations, err := layer.Locations(m.tree, made.Refs, places, startups)
	if err != nil {
		return m, err
	}
	return m, create(filepath.Join(dir, "locations"), func(w io.Writer) error {
		_, err := w.Write(locations)
		return err
	})
}

// tablePath returns the file of a layer's table.
func tablePath(dir string, layer int) string { return filepath.Join(dir, strconv.Itoa(layer)) }

// create writes a new file, through a buffer. It is synced when it is published.
func create(path string, fill func(w io.Writer) error) error {
	return createFile(path, func(file *os.File) error {
		w := bufio.NewWriterSize(file, 1<<20)
		err := fill(w)
		if err == nil {
			err = w.Flush()
		}
		return err
	})
}

func createFile(path string, fill func(file *os.File) error) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(fill(file), file.Close())
}
