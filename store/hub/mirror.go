package hub

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/wire"
)

const (
	// mirrorWorkers is how many units a mirror fetches at a time.
	mirrorWorkers = 16
	// mirrorTries is how often it asks for one thing.
	mirrorTries = 6
	// mirrorTree is how long it waits for a tree that the hub has to make.
	mirrorTree = 10 * time.Minute
)

// Mirror copies what nodes need of some images from a hub into a directory, as
// files under the paths of their URLs: a web server that serves the directory is
// a mirror. Units that are there already stay, and are not fetched again.
//
// Everything is verified before it gets its name, and what it needs is there
// before: whoever serves the directory meanwhile never names what it lacks.
type Mirror struct {
	client  *Client
	origins *Origins
	dir     string
	files   files
	tell    func(wire.Progress)
	given   []ed25519.PublicKey  // keys that the caller trusts
	keys    []ed25519.PublicKey  // the hub's keys that are trusted
	chains  map[string]wire.Link // that are there

	fetched, kept atomic.Int64
}

// Mirrored says what a Mirror has done.
type Mirrored struct {
	Images  []string `json:"images"`  // names
	Keys    []string `json:"keys"`    // the hub's trusted keys, as index.FormatKey writes them
	Trees   int      `json:"trees"`   // of their chains
	Fetched int64    `json:"fetched"` // units
	Kept    int64    `json:"kept"`    // units that were there
	Bytes   int64    `json:"bytes"`   // received: units, indexes, locations
}

// NewMirror mirrors a hub into a directory, which is made if need be. The hub has to have one of the
// keys. Without any, its key is learned and kept in the directory with what it signed first, and
// has to be the same from then on. NewMirror reports to tell, one call at a time.
func NewMirror(client *Client, dir string, keys []ed25519.PublicKey, tell func(wire.Progress)) *Mirror {
	origins := NewOrigins(slog.New(slog.DiscardHandler), client)
	return &Mirror{client: client, origins: origins, dir: dir, given: keys, tell: tell}
}

// Copy copies the images of the names, or all that are ready if there are none.
func (m *Mirror) Copy(ctx context.Context, names []string) (done Mirrored, err error) {
	files, unlock, err := openFiles(m.dir)
	if err != nil {
		return done, err
	}
	defer unlock()
	m.files = files
	if m.keys, err = m.trusted(ctx); err != nil {
		return done, err
	}
	for _, key := range m.keys {
		done.Keys = append(done.Keys, index.FormatKey(key))
	}
	if m.chains, err = m.files.chains(m.client.scope); err != nil {
		return done, err
	}
	if len(names) == 0 {
		if names, err = m.all(ctx); err != nil {
			return done, err
		}
	}
	trees := map[string]bool{} // by chain
	for _, name := range names {
		images, err := m.client.Inspect(ctx, name)
		if err != nil {
			return done, err
		}
		ready := 0
		for _, image := range images {
			if image.State != wire.StateReady || len(image.Layers) == 0 {
				continue
			}
			ready++
			if err := m.copyImage(ctx, image, trees); err != nil {
				return done, fmt.Errorf("mirror image %s: %w", name, err)
			}
		}
		if ready == 0 {
			return done, fmt.Errorf("hub %s has no image %q that can be mirrored", m.client.URL(), name)
		}
		done.Images = append(done.Images, name)
	}
	done.Trees, done.Fetched, done.Kept, done.Bytes = len(trees), m.fetched.Load(), m.kept.Load(), m.origins.Health()[0].Bytes
	return done, nil
}

// trusted returns the hub's keys that are trusted: those that were given, or that the directory
// was made with. Without either it trusts all of the hub's keys.
func (m *Mirror) trusted(ctx context.Context) ([]ed25519.PublicKey, error) {
	keys, err := m.client.Keys(ctx)
	if err != nil {
		return nil, err
	}
	pinned := m.given
	if len(pinned) == 0 {
		if pinned, err = m.files.keys(m.client.scope); err != nil || len(pinned) == 0 {
			return keys, err
		}
	}
	trusted := slices.DeleteFunc(slices.Clone(keys), func(key ed25519.PublicKey) bool {
		return !slices.ContainsFunc(pinned, func(k ed25519.PublicKey) bool { return k.Equal(key) })
	})
	if len(trusted) == 0 {
		return nil, fmt.Errorf("hub %s has other keys than the pinned ones: if the hub's own log has the same, "+
			"give --hub-key %s; if not, somebody else answers for it", m.client.URL(), index.FormatKey(keys[0]))
	}
	return trusted, nil
}

func (m *Mirror) all(ctx context.Context) (names []string, err error) {
	images, err := m.client.Images(ctx, "")
	seen := map[string]bool{}
	for _, image := range images {
		if image.State == wire.StateReady && !seen[image.Name] {
			seen[image.Name] = true
			names = append(names, image.Name)
		}
	}
	return names, err
}

// copyImage copies the trees of all chains of an image, as any of them may be
// mounted: another image may stand on it that no hub knows.
func (m *Mirror) copyImage(ctx context.Context, image wire.Inspection, trees map[string]bool) error {
	if !wire.IsDigest(image.Digest) { // it becomes the name of a file
		return fmt.Errorf("the hub names a manifest %q: want sha256:HEX", image.Digest)
	}
	for _, layer := range image.Layers { // so do these
		if !wire.IsDigest(layer.Chain) || !wire.IsDigest(layer.DiffID) {
			return fmt.Errorf("the hub names a layer %q and its chain %q: want sha256:HEX", layer.DiffID, layer.Chain)
		}
	}
	var links []wire.Link
	parent := ""
	for i, layer := range image.Layers {
		link := wire.Link{Chain: layer.Chain, Parent: parent, DiffID: layer.DiffID}
		parent = layer.Chain
		top := i == len(image.Layers)-1
		if !trees[layer.Chain] || top {
			s, err := m.copyTree(ctx, layer.Chain)
			if err != nil {
				return err
			}
			if top {
				link.Statement = s
			}
		}
		trees[layer.Chain] = true
		links = append(links, link)
	}
	if err := m.files.addChains(m.client.scope, m.chains, links); err != nil {
		return err
	}
	return m.copyManifest(ctx, image.Digest)
}

// copyManifest copies what the hub says of an image by its manifest. A hub of a version
// before says nothing: then nodes that trust images alone do not take it from the mirror.
func (m *Mirror) copyManifest(ctx context.Context, digest string) error {
	answer, err := m.client.Manifest(ctx, digest)
	if errors.Is(err, chunk.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := answer.Image.Verify(digest, m.keys); err != nil {
		return err
	}
	return m.files.writeJSON(wire.ManifestPath(m.client.scope, digest), answer)
}

// copyTree copies all that the tree of a chain needs, then its statement.
func (m *Mirror) copyTree(ctx context.Context, chain string) (s *index.Statement, err error) {
	err = m.patiently(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, mirrorTree)
		defer cancel()
		s, err = m.origins.Tree(ctx, chain)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := s.Verify(chain, m.keys); err != nil {
		return nil, err
	}
	if err := m.files.writeKeys(m.client.scope, m.keys); err != nil {
		return nil, err
	}
	stored, err := m.files.create()
	if err != nil {
		return nil, err
	}
	defer stored.discard()
	plain, err := m.files.create()
	if err != nil {
		return nil, err
	}
	defer plain.discard()
	if err := m.copyIndex(ctx, s.Tree, stored, plain.File); err != nil {
		return nil, err
	}
	extents, err := index.OpenMap(plain, s.Tree, index.NewPages(1))
	if err != nil {
		return nil, err
	}
	if err := m.copyChunks(ctx, extents); err != nil {
		return nil, err
	}
	if err := stored.publish(wire.IndexPath(m.client.scope, s.Tree)); err != nil {
		return nil, err
	}
	return s, m.files.writeJSON(wire.TreePath(m.client.scope, chain), s)
}

// copyIndex writes an index as it is served, and its map.
func (m *Mirror) copyIndex(ctx context.Context, tree chunk.ID, stored *pending, extents *os.File) error {
	return m.patiently(ctx, func() error {
		return m.origins.Index(ctx, tree, func(plain io.Reader) error {
			if err := errors.Join(restart(stored.File), restart(extents)); err != nil {
				return err
			}
			return compress(stored, plain, func(plain io.Reader) error {
				_, err := index.Receive(plain, tree, extents, io.Discard)
				return err
			})
		})
	})
}

// restart empties a file.
func restart(file *os.File) error {
	_, err := file.Seek(0, io.SeekStart)
	return errors.Join(err, file.Truncate(0))
}

// compress writes what read reads of plain, as one zstd stream.
func compress(w io.Writer, plain io.Reader, read func(plain io.Reader) error) error {
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedBetterCompression),
		zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(wire.MaxWindow))
	if err != nil {
		return err
	}
	return errors.Join(read(io.TeeReader(plain, z)), z.Close())
}

// copyChunks copies the units that hold a tree's chunks, and the locations that
// say so.
func (m *Mirror) copyChunks(ctx context.Context, extents *index.Map) (err error) {
	tree := extents.ID()
	stored, err := m.files.create()
	if err != nil {
		return err
	}
	defer stored.discard()
	plain, err := m.files.create()
	if err != nil {
		return err
	}
	defer plain.discard()
	err = m.patiently(ctx, func() error {
		return m.origins.Locations(ctx, tree, chunk.ID{}, func(r io.Reader) error {
			if err := errors.Join(restart(stored.File), restart(plain.File)); err != nil {
				return err
			}
			return compress(stored, r, func(r io.Reader) error {
				_, err := io.Copy(plain, io.LimitReader(r, index.MaxLocations(extents.Extents)))
				return err
			})
		})
	})
	if err != nil {
		return err
	}
	size, err := plain.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	locations, err := index.OpenLocations(plain, size, tree, extents.Extents)
	if err != nil {
		return err
	}
	if err := m.copyUnits(ctx, extents, locations); err != nil {
		return err
	}
	return stored.publish(wire.LocationsPath(m.client.scope, tree))
}

// patiently calls ask until it succeeds, a few times, while trying again may help.
func (m *Mirror) patiently(ctx context.Context, ask func() error) error {
	pause := firstPause
	for try := 1; ; try++ {
		err := ask()
		var down *Unavailable
		if err == nil || try == mirrorTries || !errors.As(err, &down) {
			return err
		}
		select {
		case <-time.After(max(pause, down.After)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause = min(2*pause, maxPause)
	}
}
