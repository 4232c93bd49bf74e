// Package attachment attaches an index to an image in its registry, so that nodes start the image
// lazily without a hub and without a change to it. Package attached has the format.
//
// Make reads an image once, layer by layer, and makes the same tree as a hub. Remake makes other
// startup packs for an index that is attached already, and reads only their chunks. Push pushes the
// result, Find lists what is attached, and Remove removes it.
//
// What was read is compared with the digests in the image's manifest and config before anything is
// signed. The artifact is published by its manifest, when the registry has all of its blobs.
//
// It refuses layers of which no part can be read alone (survey.NoEntryError).
//
// A Made has its blobs in a directory for temporary files: about 1 % of the image's size, twice
// the tree's index, and the startup packs. While these are made, the directory also has their
// chunks as plain bytes, and up to 1 GiB of what the guess has read. Memory: as package survey, for
// each layer that is read at a time, and the entries and tables of all layers.
package attachment

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/attached"
	"lighter/format/guess"
	"lighter/format/index"
	"lighter/format/layer"
	"lighter/format/trace"
	"lighter/store/repository"
)

// Image is an image of one platform in a registry.
type Image struct {
	Platform string
	Manifest v1.Descriptor
	Layers   []v1.Descriptor
	DiffIDs  []digest.Digest
	Config   guess.Config // how the image starts
	From     *repository.Repository
}

// Chain returns the chainID of the image's layers.
func (im *Image) Chain() string { return identity.ChainID(slices.Clone(im.DiffIDs)).String() }

// Options say how an index is made. Dir and Keys are required.
type Options struct {
	Keys       []ed25519.PrivateKey // sign the contents: 1 to index.MaxKeys
	Recordings []trace.Recording    // of starts: they become startup packs
	Guess      bool                 // startup packs also have what starts probably read, by the image's files
	Startup    int64                // limits the startup packs, in plain bytes
	Version    int                  // of the contents
	Jobs       int                  // layers that are read at a time; 0: 1
	Dir        string               // for temporary files; empty: that of the system

	// Report is called with the progress of reading the blob with a digest, in
	// bytes. It may be nil.
	Report func(step, blob string, done, total int64)
}

// Made is an index that was made and is not attached yet. The caller calls Close.
type Made struct {
	Contents attached.Contents
	envelope []byte
	dir      string
}

// Close removes the temporary files.
func (m *Made) Close() error { return os.RemoveAll(m.dir) }

// Size returns the bytes of all blobs without startup packs.
func (m *Made) Size() int64 {
	n := int64(len(m.envelope)) + m.Contents.Index.Size + m.Contents.Locations.Size
	for _, d := range m.Contents.Tables {
		n += d.Size
	}
	return n
}

// Make reads an image, and makes its index. The error wraps a *survey.NoEntryError if a layer
// cannot be read in parts.
func Make(ctx context.Context, im Image, o Options) (*Made, error) {
	return run(ctx, im, o, func(w *work) error { return w.read(ctx) })
}

// Remake makes the startup packs of an attached index anew. The other parts of the index stay.
func Remake(ctx context.Context, im Image, old Found, o Options) (*Made, error) {
	return run(ctx, im, o, func(w *work) error { return w.fetch(ctx, old.Contents, old.In) })
}

// signAgain returns an index with the contents of one whose blobs the registry has, and with the
// signatures of all keys.
func signAgain(old attached.Contents, o Options) (*Made, error) {
	old.Version = o.Version
	envelope, err := attached.Seal(&old, o.Keys)
	if err != nil {
		return nil, err
	}
	return &Made{Contents: old, envelope: envelope}, nil
}

// work is an index that is being made.
type work struct {
	Image
	Options
	dir      string
	contents attached.Contents
	surveyed []*layer.Builder // of the layers, until their tables are written
	tree     openedTree
}

// run gets index and tables, and makes what depends on them.
func run(ctx context.Context, im Image, o Options, get func(*work) error) (*Made, error) {
	if len(im.Layers) == 0 || len(im.Layers) != len(im.DiffIDs) || len(im.Layers) > attached.MaxLayers {
		return nil, fmt.Errorf("make an index of image %s: it has %d layers, and its config %d diffIDs: want "+
			"1 to %d of each", im.Manifest.Digest, len(im.Layers), len(im.DiffIDs), attached.MaxLayers)
	}
	if o.Report == nil {
		o.Report = func(string, string, int64, int64) {}
	}
	dir, err := os.MkdirTemp(o.Dir, "lighter-attach-*")
	if err != nil {
		return nil, err
	}
	w := &work{Image: im, Options: o, dir: dir}
	w.contents = attached.Contents{Manifest: im.Manifest.Digest, Format: index.Format, Chain: im.Chain(),
		Version: o.Version}
	var envelope []byte
	if err = get(w); err == nil {
		err = w.tree.openTables(dir, w.contents.Tables)
	}
	if err == nil {
		err = w.locate(ctx)
	}
	if err = errors.Join(err, w.tree.close()); err == nil {
		envelope, err = attached.Seal(&w.contents, o.Keys)
	}
	if err != nil {
		err = fmt.Errorf("make an index of image %s: %w", im.Manifest.Digest, err)
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &Made{w.contents, envelope, dir}, nil
}

// locate makes the startup packs and the locations.
func (w *work) locate(ctx context.Context) error {
	made, err := w.startups(ctx, &w.tree)
	if err != nil {
		return fmt.Errorf("make startup packs: %w", err)
	}
	var places []layer.Places
	for _, l := range w.tree.layers {
		places = append(places, l.places)
	}
	plain, err := layer.Locations(w.contents.Tree, w.tree.extents.Refs, places, made)
	if err != nil {
		return err
	}
	w.contents.Locations, err = w.write(attached.MediaTypeLocations, func(to io.Writer) error {
		return attached.WriteLocations(to, plain)
	})
	return err
}
