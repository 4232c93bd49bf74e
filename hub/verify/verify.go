// Package verify reads back everything that the hub has of an image and compares it: manifest,
// layers, layer records, trees, indexes, locations, startup packs and chunks.
//
// It reports only problems of the image. While the catalog, the bucket or the storage of the hub's
// registry is away, a verification waits. If a layer is read from another registry, and that
// registry does not answer, this is a problem of the image: the registry may be gone for good.
package verify

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"

	"lighter/format/chunk"
	"lighter/format/tree"
	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/ingest"
	"lighter/hub/jobs"
	"lighter/hub/objects"
	"lighter/hub/oci"
	"lighter/hub/publish"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/wire"
)

const (
	// jobKind is the kind of the jobs that verify the images of a name. Their key is the name.
	jobKind     = "verify"
	atOnce      = 2   // names that one process verifies at a time
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
	keys      []ed25519.PrivateKey // each has to have signed the statements
	jobs      *jobs.Queue
}

// New returns a verifier over the hub's stores, and adds its kind of jobs to the queue.
func New(
	c *catalog.Catalog, o *objects.Store, r *registry.Registry, p *publish.Publisher, trees *ingest.Trees,
	limits tree.Limits, keys []ed25519.PrivateKey, q *jobs.Queue,
) *Verifier {
	v := &Verifier{catalog: c, objects: o, registry: r, publisher: p, trees: trees, limits: limits, keys: keys,
		jobs: q}
	q.Add(jobs.Kind{Name: jobKind, AtOnce: atOnce, Run: v.run})
	return v
}

// Verify verifies the ready images of a name, and returns the problems that it found. It reports
// progress to send. A job, in any process of the hub, does the work, and goes on if ctx ends or
// send fails. An error means that the result is not known.
func (v *Verifier) Verify(ctx context.Context, name string, send func(wire.Progress) error) ([]string, error) {
	ref, err := report.ParseName(name)
	if err != nil {
		return nil, err
	}
	if _, err := v.images(ctx, ref.Name()); err != nil {
		return nil, err
	}
	n, err := v.catalog.Jobs.Add(ctx, catalog.Job{Kind: jobKind, Key: ref.Name(), ByUser: true}, 0)
	if err != nil {
		return nil, err
	}
	v.jobs.Changed(jobKind, ref.Name())
	j, err := v.jobs.AwaitEnd(ctx, jobKind, ref.Name(), n, report.NewSender(send))
	if err != nil {
		return nil, err
	}
	var found []string
	if err := json.Unmarshal(j.Result, &found); err != nil {
		return nil, fmt.Errorf("parse the result of job %d: %w", n, err)
	}
	return found, nil
}

// images returns the ready images of a name. If there are none, it returns an error.
func (v *Verifier) images(ctx context.Context, name string) ([]catalog.Image, error) {
	images, err := v.catalog.Images(ctx, name)
	images = slices.DeleteFunc(images, func(i catalog.Image) bool { return i.State != wire.StateReady })
	if err == nil && len(images) == 0 {
		err = fmt.Errorf("ready image %s: %w", name, catalog.ErrNotFound)
	}
	return images, err
}

// run verifies the images of a name. The job's result is the list of problems.
func (v *Verifier) run(ctx context.Context, j *jobs.Running) error {
	ref, err := wire.ParseName(j.Key)
	if err != nil {
		return err
	}
	images, err := v.images(ctx, j.Key)
	if err != nil {
		return err
	}
	found := &problems{list: []string{}}
	for _, image := range images {
		if err := v.verify(ctx, ref, image, &j.Progress, found); err != nil {
			return err
		}
	}
	j.Result, err = json.Marshal(found.report())
	return err
}

// problems is the list of problems in a report. It is safe for concurrent use.
type problems struct {
	mu   sync.Mutex
	list []string
	more int // number of problems beyond maxProblems
}

// add adds a problem, unless the report has it.
func (p *problems) add(format string, args ...any) {
	problem := fmt.Sprintf(format, args...)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case slices.Contains(p.list, problem):
	case len(p.list) < maxProblems:
		p.list = append(p.list, problem)
	default:
		p.more++
	}
}

// report returns the problems, and a line with the number of those beyond maxProblems.
func (p *problems) report() []string {
	if p.more == 0 {
		return p.list
	}
	return append(p.list, fmt.Sprintf("and %d further problems", p.more))
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
	records  []ingest.Record // one of each layer, not opened: a new one, or the hub's if the blob was not read
	bad      map[chunk.ID]bool
}

func (v *Verifier) verify(
	ctx context.Context, ref wire.Ref, image catalog.Image, progress *report.Progress, found *problems,
) (err error) {
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

// isAway is away.IsStill for the stores that the verifier reads.
func (v *Verifier) isAway(ctx context.Context, err error) bool {
	return away.IsStill(ctx, err, catalog.ErrAway, v.objects, v.registry)
}

// note adds err as a problem of the image. If err says nothing about the image, note returns it
// instead: the job was interrupted, its disk is full, its scratch directory was deleted, or a store
// of the hub is away.
func (v *verification) note(ctx context.Context, what string, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case jobs.IsDisk(err) || v.isAway(ctx, err):
		return err
	}
	v.found.add("%s: %v", what, err)
	return nil
}

// checkManifest checks that manifest and config are readable.
func (v *verification) checkManifest(ctx context.Context) error {
	read := func() (*oci.Image, error) { return oci.Read(ctx, v.from, v.image.Digest) }
	if _, err := away.Retry(ctx, v.isAway, read); err != nil {
		return v.note(ctx, "manifest", err)
	}
	return nil
}

// checkLayers reads the layers' blobs. It makes new records from the blobs, and compares them with
// the hub's records. It makes the tree from the new records, and compares it with the catalog's.
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
		err := v.checkLayer(ctx, l, path)
		if away.Is(err) && v.isStored(ctx, l.Digest) { // other registries are asked once
			_, err = away.Retry(ctx, v.isAway, func() (struct{}, error) {
				return struct{}{}, v.checkLayer(ctx, l, path)
			})
		}
		if err != nil {
			whole = false
			record.Open = func() (io.ReadCloser, error) { return v.openRecord(ctx, l.DiffID) }
			if !errors.Is(err, registry.ErrReleased) { // the blob is stored nowhere: the hub has only the record
				if err := v.note(ctx, l.String(), err); err != nil {
					return err
				}
			}
		}
		v.layers, v.records = append(v.layers, l), append(v.records, record)
	}
	if !whole {
		return nil // the tree cannot be made
	}
	return v.checkTree(ctx)
}

// isStored reports whether the hub's own registry has a blob.
func (v *verification) isStored(ctx context.Context, digest string) bool {
	_, err := v.registry.BlobSize(ctx, digest)
	return err == nil
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
	if err := ingest.VerifyLayer(ctx, l, blob, v.limits, path, onRead, ingest.KeepNone); err != nil {
		return err
	}
	read := func() (chunk.ID, error) { return sumOf(v.openRecord(ctx, l.DiffID)) }
	kept, err := away.Retry(ctx, v.isAway, read)
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

// noteFiles adds a problem for each file that has a bad chunk.
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
