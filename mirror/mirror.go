// Package mirror copies what nodes need of some images from a hub into a directory. A web server
// that serves the directory is a mirror: the files have the paths of the hub's URLs.
//
// A file is verified before it gets its name, and the files that it refers to have their names by
// then. So the directory can be served while it is written.
package mirror

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/index"
	"lighter/mirror/files"
	"lighter/store/origin"
	"lighter/wire"
	"lighter/wire/client"
)

const (
	workers = 16 // units that are fetched at a time
	// tries is how often one object is requested at most.
	tries = 6
	// treeTimeout bounds the wait for a tree that the hub has to make.
	treeTimeout = 10 * time.Minute
)

// Mirror copies from one hub into one directory. Units that the directory has are not fetched
// again.
type Mirror struct {
	client *client.Client
	hub    *origin.Failover // the same hub
	dir    string
	files  files.Dir
	report func(wire.Progress)
	pinned []ed25519.PublicKey  // by the caller
	keys   []ed25519.PublicKey  // the hub's keys that are trusted
	chains map[string]wire.Link // in the directory

	fetched, kept atomic.Int64
}

// Result says what Copy has done.
type Result struct {
	Images  []string `json:"images"`  // names
	Keys    []string `json:"keys"`    // the hub's trusted keys, as index.FormatKey writes them
	Trees   int      `json:"trees"`   // of the images' chains
	Fetched int64    `json:"fetched"` // units
	Kept    int64    `json:"kept"`    // units that the directory had
	Bytes   int64    `json:"bytes"`   // received: units, indexes, locations
	// NotHeld says why the hub does not know what the mirror has; empty: it knows. Such a hub may
	// delete the data of these images when the images are removed.
	NotHeld string `json:"notHeld,omitempty"`
}

// New returns a Mirror of a hub into a directory, which is made if it does not exist. The hub has
// to have one of the keys. Without keys, the hub's keys are learned. They are kept in the directory
// with the first objects that they signed, and later runs accept no others. report is called by one
// goroutine at a time.
func New(hub client.Options, dir string, keys []ed25519.PublicKey, report func(wire.Progress)) (*Mirror, error) {
	hub.Header = http.Header{wire.CopyHeader: {"1"}}
	c, err := client.New(hub)
	if err != nil {
		return nil, err
	}
	o, err := origin.New(slog.New(slog.DiscardHandler), hub)
	if err != nil {
		return nil, err
	}
	return &Mirror{client: c, hub: o, dir: dir, pinned: keys, report: report}, nil
}

// Copy copies the images of the names; without names, all images that are ready. If a name cannot
// be copied, the other names still are, unless the hub cannot be reached. At the end, Copy reports
// to the hub what the directory has, and returns the errors of all names.
func (m *Mirror) Copy(ctx context.Context, names []string) (done Result, err error) {
	dir, unlock, err := files.Open(m.dir)
	if err != nil {
		return done, err
	}
	defer unlock()
	m.files = dir
	if m.keys, err = m.trustedKeys(ctx); err != nil {
		return done, err
	}
	for _, key := range m.keys {
		done.Keys = append(done.Keys, index.FormatKey(key))
	}
	if m.chains, err = m.files.Chains(m.client.Domain()); err != nil {
		return done, err
	}
	if len(names) == 0 {
		if names, err = m.readyNames(ctx); err != nil {
			return done, err
		}
	}
	trees := map[string]bool{} // by chain
	var failed []error
	for _, name := range names {
		if err := m.copyName(ctx, name, trees); err != nil {
			failed = append(failed, fmt.Errorf("mirror image %s: %w", name, err))
			if dial := (*net.OpError)(nil); ctx.Err() != nil || errors.As(err, &dial) && dial.Op == "dial" {
				break
			}
			continue
		}
		done.Images = append(done.Images, name)
	}
	done.Trees, done.Bytes = len(trees), m.hub.Health()[0].Bytes
	done.Fetched, done.Kept = m.fetched.Load(), m.kept.Load()
	if err := m.reportHeld(ctx); err != nil {
		done.NotHeld = err.Error()
		if len(failed) > 0 {
			failed = append(failed, fmt.Errorf("report what the mirror has: %w", err))
		}
	}
	return done, cmp.Or(errors.Join(failed...), ctx.Err())
}

// trustedKeys returns the hub's keys that the caller or the directory has pinned; if neither has
// pinned any, all of the hub's keys.
func (m *Mirror) trustedKeys(ctx context.Context) ([]ed25519.PublicKey, error) {
	keys, err := m.client.Keys(ctx)
	if err != nil {
		return nil, err
	}
	pinned := m.pinned
	if len(pinned) == 0 {
		if pinned, err = m.files.Keys(m.client.Domain()); err != nil || len(pinned) == 0 {
			return keys, err
		}
	}
	trusted := slices.DeleteFunc(slices.Clone(keys), func(key ed25519.PublicKey) bool {
		return !slices.ContainsFunc(pinned, func(k ed25519.PublicKey) bool { return k.Equal(key) })
	})
	if len(trusted) == 0 {
		return nil, fmt.Errorf("hub %s has none of the pinned keys: if the hub's own log shows its key, "+
			"give --hub-key %s; if not, something else answers in its place", m.client.URL(), index.FormatKey(keys[0]))
	}
	return trusted, nil
}

func (m *Mirror) readyNames(ctx context.Context) (names []string, err error) {
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

// copyName copies the images of one name.
func (m *Mirror) copyName(ctx context.Context, name string, trees map[string]bool) error {
	images, err := m.client.Inspect(ctx, name)
	if err != nil {
		return err
	}
	ready := 0
	for _, image := range images {
		if image.State != wire.StateReady || len(image.Layers) == 0 {
			continue
		}
		ready++
		if err := m.copyImage(ctx, image, trees); err != nil {
			return err
		}
	}
	if ready == 0 {
		return fmt.Errorf("hub %s has no image %q that can be mirrored", m.client.URL(), name)
	}
	return nil
}

// copyImage copies the trees of all chains of an image, as a node may mount any of them: another
// image, which no hub knows, may share the lower layers.
func (m *Mirror) copyImage(ctx context.Context, image wire.Inspection, trees map[string]bool) error {
	// Digests and chains become names of files.
	if !wire.IsDigest(image.Digest) {
		return fmt.Errorf("invalid manifest digest %q from the hub: want sha256:HEX", image.Digest)
	}
	for _, layer := range image.Layers {
		if !wire.IsDigest(layer.Chain) || !wire.IsDigest(layer.DiffID) {
			return fmt.Errorf("invalid layer %q or chain %q from the hub: want sha256:HEX", layer.DiffID, layer.Chain)
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
	if err := m.files.AddChains(m.client.Domain(), m.chains, links); err != nil {
		return err
	}
	return m.copyManifest(ctx, image.Digest)
}

// copyManifest copies the image statement of a manifest. A hub may have none; then nodes with
// trust = "image" do not take the image from the mirror.
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
	return m.files.WriteJSON(wire.ManifestPath(m.client.Domain(), digest), answer)
}

// copyTree copies all objects of a chain's tree, then its statement.
func (m *Mirror) copyTree(ctx context.Context, chain string) (s *index.Statement, err error) {
	err = origin.Retry(ctx, tries, func() error {
		ctx, cancel := context.WithTimeout(ctx, treeTimeout)
		defer cancel()
		s, err = m.hub.Tree(ctx, chain)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := s.Verify(chain, m.keys); err != nil {
		return nil, err
	}
	if err := m.files.WriteKeys(m.client.Domain(), m.keys); err != nil {
		return nil, err
	}
	stored, plain, err := m.receive(ctx, func(read func(io.Reader) error) error {
		return m.hub.Index(ctx, s.Tree, read)
	}, func(r io.Reader, extents *os.File) error {
		_, err := index.Receive(r, s.Tree, extents, io.Discard)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer stored.Discard()
	defer plain.Discard()
	extents, err := index.OpenMap(plain, s.Tree, index.NewPages(1))
	if err != nil {
		return nil, err
	}
	if err := m.copyLocations(ctx, extents); err != nil {
		return nil, err
	}
	if err := stored.Publish(wire.IndexPath(m.client.Domain(), s.Tree)); err != nil {
		return nil, err
	}
	return s, m.files.WriteJSON(wire.TreePath(m.client.Domain(), chain), s)
}

// copyLocations copies the units that hold a tree's chunks, then its locations.
func (m *Mirror) copyLocations(ctx context.Context, extents *index.Map) error {
	tree := extents.ID()
	stored, plain, err := m.receive(ctx, func(read func(io.Reader) error) error {
		return m.hub.Locations(ctx, tree, chunk.ID{}, read)
	}, func(r io.Reader, plain *os.File) error {
		_, err := io.Copy(plain, io.LimitReader(r, index.MaxLocations(extents.Extents)))
		return err
	})
	if err != nil {
		return err
	}
	defer stored.Discard()
	defer plain.Discard()
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
	return stored.Publish(wire.LocationsPath(m.client.Domain(), tree))
}

// receive fetches an object. stored gets the object in the form in which it is served, one zstd
// stream. plain gets what read writes to it. Each try begins with empty files.
func (m *Mirror) receive(ctx context.Context, fetch func(read func(io.Reader) error) error,
	read func(r io.Reader, plain *os.File) error) (stored, plain *files.Pending, err error) {
	if stored, err = m.files.Create(); err != nil {
		return nil, nil, err
	}
	if plain, err = m.files.Create(); err != nil {
		stored.Discard()
		return nil, nil, err
	}
	err = origin.Retry(ctx, tries, func() error {
		return fetch(func(r io.Reader) error {
			if err := errors.Join(truncate(stored.File), truncate(plain.File)); err != nil {
				return err
			}
			z := compress.IndexEncoder(stored, compress.MaxWindow)
			return errors.Join(read(io.TeeReader(r, z), plain.File), z.Close())
		})
	})
	if err != nil {
		stored.Discard()
		plain.Discard()
		return nil, nil, err
	}
	return stored, plain, nil
}

// truncate empties a file.
func truncate(file *os.File) error {
	_, err := file.Seek(0, io.SeekStart)
	return errors.Join(err, file.Truncate(0))
}
