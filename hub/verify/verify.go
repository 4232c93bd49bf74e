// Package verify reads back everything that the hub has of an image and compares it: manifest,
// layers, layer records, trees, indexes, locations, startup packs and chunks.
package verify

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"

	"lighter/format/chunk"
	"lighter/format/tree"
	"lighter/hub/catalog"
	"lighter/hub/ingest"
	"lighter/hub/objects"
	"lighter/hub/oci"
	"lighter/hub/publish"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

const (
	atOnce      = 2   // images
	maxProblems = 200 // in a report
	batchChunks = 500 // chunks in one query of the catalog
)

// Verifier verifies images. It is safe for concurrent use.
type Verifier struct {
	catalog   *catalog.Catalog
	objects   *objects.Store
	registry  *registry.Registry
	publisher *publish.Publisher
	trees     *ingest.Trees
	limits    tree.Limits
	keys      []ed25519.PrivateKey // each has to have signed
	slots     *semaphore.Weighted
}

// New returns a verifier over the hub's stores.
func New(
	c *catalog.Catalog, o *objects.Store, r *registry.Registry, p *publish.Publisher, trees *ingest.Trees,
	limits tree.Limits, keys []ed25519.PrivateKey,
) *Verifier {
	return &Verifier{catalog: c, objects: o, registry: r, publisher: p, trees: trees, limits: limits, keys: keys,
		slots: semaphore.NewWeighted(atOnce)}
}

// Run waits until ctx ends, and then for the verifications that are running.
func (v *Verifier) Run(ctx context.Context) error {
	<-ctx.Done()
	return v.slots.Acquire(context.WithoutCancel(ctx), atOnce)
}

// Verify verifies the ready images of a name, and returns the problems that it found. It reports
// progress to send. An error says that the verification did not come to its end.
func (v *Verifier) Verify(ctx context.Context, name string, send func(wire.Progress) error) ([]string, error) {
	ref, err := report.ParseName(name)
	if err != nil {
		return nil, err
	}
	images, err := v.catalog.Images(ctx, ref.Name())
	if err != nil {
		return nil, err
	}
	images = slices.DeleteFunc(images, func(i catalog.Image) bool { return i.State != wire.StateReady })
	if len(images) == 0 {
		return nil, fmt.Errorf("ready image %s: %w", ref.Name(), catalog.ErrNotFound)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	progress, found, done := &report.Progress{}, &problems{}, make(chan struct{})
	go func() {
		defer close(done)
		for _, image := range images {
			if err = v.verify(ctx, ref, image, progress, found); err != nil {
				return
			}
		}
	}()
	if sendErr := report.NewSender(send).Await(ctx, done, progress); sendErr != nil {
		cancel()
		<-done
		return nil, sendErr
	}
	return found.list, err
}

// problems collects the problems of a report.
type problems struct {
	mu   sync.Mutex
	list []string
}

func (p *problems) add(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.list) < maxProblems {
		p.list = append(p.list, fmt.Sprintf(format, args...))
	}
}

// verification is the verification of one image.
type verification struct {
	*Verifier
	image    catalog.Image
	from     registry.Repository
	dir      string // scratch
	progress *report.Progress
	found    *problems
	layers   []oci.Layer
	records  []ingest.Record // of layers, not opened; made again where that was possible
	bad      map[chunk.ID]bool
}

func (v *Verifier) verify(
	ctx context.Context, ref wire.Ref, image catalog.Image, progress *report.Progress, found *problems,
) (err error) {
	if err := v.slots.Acquire(ctx, 1); err != nil {
		return err
	}
	defer v.slots.Release(1)
	dir, err := v.publisher.TempDir("verify")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	one := &verification{Verifier: v, image: image, from: v.registry.Repository(ref.Repository), dir: dir,
		progress: progress, found: found, bad: map[chunk.ID]bool{}}
	checks := []func(context.Context) error{one.checkManifest, one.checkLayers, one.checkTrees, one.checkChunks}
	for _, check := range checks {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// note adds err as a problem. If the verification was ended, note returns that error instead.
func (v *verification) note(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	v.found.add("%s: %v", what, err)
	return nil
}

// checkManifest checks that manifest and config are readable.
func (v *verification) checkManifest(ctx context.Context) error {
	if _, err := oci.Read(ctx, v.from, v.image.Digest); err != nil {
		return v.note(ctx, "manifest", err)
	}
	return nil
}

// checkLayers reads the layers from the registry again. It compares them with their records, and
// the tree that they make with the catalog's.
func (v *verification) checkLayers(ctx context.Context) error {
	known, err := v.catalog.ImageLayers(ctx, v.image.N)
	if err != nil {
		return err
	}
	whole := true
	for i, l := range known {
		l := oci.Layer{Digest: l.Digest, MediaType: l.MediaType, Size: l.Size, DiffID: l.DiffID, Chain: l.Chain,
			Number: i + 1, Of: len(known)}
		path := filepath.Join(v.dir, fmt.Sprintf("layer-%d", l.Number))
		record := ingest.Record{Open: func() (io.ReadCloser, error) { return ingest.OpenRecord(path) }}
		if err := v.checkLayer(ctx, l, path); err != nil {
			whole = false
			record.Open = func() (io.ReadCloser, error) { return v.openRecord(ctx, l.DiffID) }
			if err := v.note(ctx, l.String(), err); err != nil {
				return err
			}
		}
		v.layers, v.records = append(v.layers, l), append(v.records, record)
	}
	if !whole {
		return nil // the tree cannot be made
	}
	return v.checkTree(ctx)
}

// openRecord opens the hub's record of a layer.
func (v *verification) openRecord(ctx context.Context, diffID string) (io.ReadCloser, error) {
	return v.objects.OpenPlain(ctx, objects.LayerKey(diffID))
}

// checkLayer reads a layer's blob, writes its record to path, and compares it with the hub's.
func (v *verification) checkLayer(ctx context.Context, l oci.Layer, path string) error {
	blob, err := v.from.Open(ctx, l.Digest)
	if err != nil {
		return err
	}
	defer blob.Close()
	onRead := v.progress.Step("check", wire.ShortDigest(l.Digest), l.Size).Add
	if err := ingest.VerifyLayer(ctx, l, blob, v.limits, path, onRead); err != nil {
		return err
	}
	kept, err := sumOf(v.openRecord(ctx, l.DiffID))
	if err != nil {
		return v.note(ctx, l.String()+": its record", err)
	}
	if fresh, err := sumOf(ingest.OpenRecord(path)); err != nil || fresh != kept {
		v.found.add("%s: its record differs from its blob", &l)
	}
	return nil
}

// sumOf returns the digest of an opened record.
func sumOf(record io.ReadCloser, err error) (chunk.ID, error) {
	if err != nil {
		return chunk.ID{}, err
	}
	defer record.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, record)
	return chunk.ID(sum.Sum(nil)), err
}

// checkTree makes the tree again from the new records.
func (v *verification) checkTree(ctx context.Context) error {
	id, err := v.trees.ID(ctx, v.dir, slices.Clone(v.records))
	if err != nil {
		return v.note(ctx, "tree", err)
	}
	if id != v.image.Tree {
		v.found.add("tree: the layers make tree %s, the catalog has %s", id, v.image.Tree)
	}
	return nil
}

// entries calls fn for each entry of the layers whose records can be read.
func (v *verification) entries(ctx context.Context, fn func(l *oci.Layer, e *tree.Entry)) error {
	for i, record := range slices.Clone(v.records) {
		l := &v.layers[i]
		e, err := record.Next()
		for ; err == nil; e, err = record.Next() {
			fn(l, e)
		}
		record.Close()
		if err == io.EOF {
			continue
		}
		if err := v.note(ctx, l.String()+": its record", err); err != nil {
			return err
		}
	}
	return nil
}

// noteFiles adds the files as problems that have bad chunks.
func (v *verification) noteFiles(ctx context.Context) error {
	if len(v.bad) == 0 {
		return nil
	}
	return v.entries(ctx, func(l *oci.Layer, e *tree.Entry) {
		for _, extent := range e.Content.Extents {
			if v.bad[extent.ID] {
				v.found.add("layer %d of %d: file %q: chunk %s cannot be read back",
					l.Number, l.Of, path.Join("/", e.Name), extent.ID.Short())
				break
			}
		}
	})
}
