package ingest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/tree"
	"lighter/hub/catalog"
	"lighter/hub/report"
	"lighter/wire"
)

// Verify reads back all that the hub has of the images of a name that are ready,
// and makes their trees anew from their layers. It returns what is wrong, and
// where; an error says that it could not find out. Progress goes to tell.
func (s *Service) Verify(ctx context.Context, name string, tell func(wire.Progress) error) ([]string, error) {
	ref, err := wire.ParseName(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", report.ErrInvalid, err)
	}
	images, err := s.catalog.Images(ctx, ref.Name())
	if err != nil {
		return nil, err
	}
	images = slices.DeleteFunc(images, func(i catalog.Image) bool { return i.State != wire.StateReady })
	if len(images) == 0 {
		return nil, fmt.Errorf("image %s that is ready: %w", ref.Name(), catalog.ErrNotFound)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	story, found, done := &report.Progress{}, &findings{}, make(chan struct{})
	go func() {
		defer close(done)
		for _, image := range images {
			if err = s.verifyImage(ctx, ref, image, story, found); err != nil {
				return
			}
		}
	}()
	if tellErr := report.NewSender(tell).Await(ctx, done, story); tellErr != nil {
		cancel()
		<-done
		return nil, tellErr
	}
	return found.list, err
}

// maxFindings bounds what is reported: whoever has so many needs no more.
const maxFindings = 200

// findings are the problems that were found.
type findings struct {
	mu   sync.Mutex
	list []string
}

func (f *findings) add(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.list) < maxFindings {
		f.list = append(f.list, fmt.Sprintf(format, args...))
	}
}

// verification is the check of one image.
type verification struct {
	*Service
	row        catalog.Image
	repository string
	dir        string // scratch
	story      *report.Progress
	found      *findings
	layers     []layer
	records    []*recordSource // of layers, made anew where that was possible
	bad        map[chunk.ID]bool
}

func (s *Service) verifyImage(ctx context.Context, ref wire.Ref, row catalog.Image, story *report.Progress, found *findings) (err error) {
	if err := s.verifying.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.verifying.Release(1)
	dir, err := s.publisher.TempDir("verify")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	v := &verification{Service: s, row: row, repository: ref.Repository, dir: dir, story: story, found: found, bad: map[chunk.ID]bool{}}
	for _, check := range []func(context.Context) error{v.checkManifest, v.checkLayers, v.checkTrees, v.checkChunks} {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// note makes a finding of what is wrong with the image. It returns the error if
// it is that the work was ended.
func (v *verification) note(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	v.found.add("%s: %v", what, err)
	return nil
}

// checkManifest reads manifest and config.
func (v *verification) checkManifest(ctx context.Context) error {
	m, err := v.registry.Manifest(ctx, v.repository, v.row.Digest)
	if err != nil {
		return v.note(ctx, "manifest", err)
	}
	manifest, err := parseManifest(m)
	if err != nil {
		return v.note(ctx, "manifest", err)
	}
	config, err := own{v.registry, v.repository}.Config(ctx, manifest.Config)
	if err == nil {
		_, err = parseImage(manifest, config)
	}
	if err != nil {
		return v.note(ctx, "config", err)
	}
	return nil
}

// checkLayers reads the layers from the registry again, compares them with their
// records, and the tree that they make with the one that is known.
func (v *verification) checkLayers(ctx context.Context) error {
	known, err := v.catalog.ImageLayers(ctx, v.row.N)
	if err != nil {
		return err
	}
	whole := true
	for i, l := range known {
		l := layer{Digest: l.Digest, MediaType: l.MediaType, Size: l.Size, DiffID: l.DiffID, Chain: l.Chain, n: i + 1, of: len(known)}
		v.layers = append(v.layers, l)
		open := func() (io.ReadCloser, error) { return v.openLayer(ctx, l.DiffID) }
		if path, err := v.checkLayer(ctx, l); err != nil {
			whole = false
			if err := v.note(ctx, l.name(), err); err != nil {
				return err
			}
		} else {
			open = func() (io.ReadCloser, error) { return openFile(path) }
		}
		v.records = append(v.records, &recordSource{open: open})
	}
	if !whole {
		return nil // what is wrong is said, and of which layers
	}
	return v.checkTree(ctx)
}

// checkLayer reads a layer from its blob and returns the path of its record,
// made anew.
func (v *verification) checkLayer(ctx context.Context, l layer) (string, error) {
	name := filepath.Join(v.dir, fmt.Sprintf("layer-%d", l.n))
	blob, err := v.registry.OpenBlob(ctx, v.repository, l.Digest)
	if err != nil {
		return "", err
	}
	defer blob.Close()
	record, err := createRecord(name)
	if err != nil {
		return "", err
	}
	defer record.Close()
	reader := &layerReader{layer: l, limits: v.config.Limits, read: v.story.Step("check", wire.ShortDigest(l.Digest), l.Size).Add}
	if err := reader.verify(ctx, blob, record.RecordWriter); err != nil {
		return "", err
	}
	if err := record.finish(); err != nil {
		return "", err
	}
	kept, err := recordSum(v.openLayer(ctx, l.DiffID))
	if err != nil {
		return name, v.note(ctx, l.name()+": its record", err)
	}
	if fresh, err := recordSum(openFile(name)); err != nil || fresh != kept {
		v.found.add("%s: its record is not what its blob says", l.name())
	}
	return name, nil
}

// recordSum returns the digest of a record's plain bytes.
func recordSum(from io.ReadCloser, err error) (chunk.ID, error) {
	if err != nil {
		return chunk.ID{}, err
	}
	defer from.Close()
	z, err := compress.Reader(from)
	if err != nil {
		return chunk.ID{}, err
	}
	defer z.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, z)
	return chunk.ID(sum.Sum(nil)), err
}

// checkTree makes the tree from the records that were made anew.
func (v *verification) checkTree(ctx context.Context) error {
	if err := v.merging.Acquire(ctx, 1); err != nil {
		return err
	}
	defer v.merging.Release(1)
	merged, err := apply(ctx, v.records, v.config.Limits)
	if err != nil {
		return v.note(ctx, "tree", err)
	}
	made, metadata, err := makeIndex(v.dir, merged)
	if err != nil {
		return v.note(ctx, "tree", err)
	}
	defer os.Remove(metadata)
	if id := made.ID(); id != v.row.Tree {
		v.found.add("tree: the layers make tree %s, the hub says %s", id, v.row.Tree)
	}
	return nil
}

// entries calls fn for each entry of the layers, as far as their records can be
// read.
func (v *verification) entries(ctx context.Context, fn func(l *layer, e *tree.Entry)) error {
	for i := range v.layers {
		record := &recordSource{open: v.records[i].open}
		for {
			e, err := record.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				record.close()
				if err := v.note(ctx, v.layers[i].name()+": its record", err); err != nil {
					return err
				}
				break
			}
			fn(&v.layers[i], e)
		}
	}
	return nil
}

// nameBad says which files cannot be read, for chunks mean nothing to people.
func (v *verification) nameBad(ctx context.Context) error {
	if len(v.bad) == 0 {
		return nil
	}
	return v.entries(ctx, func(l *layer, e *tree.Entry) {
		for _, extent := range e.Content.Extents {
			if v.bad[extent.ID] {
				v.found.add("layer %d of %d: file %q: chunk %s cannot be read back", l.n, l.of, path.Join("/", e.Name), extent.ID.Short())
				break
			}
		}
	})
}
