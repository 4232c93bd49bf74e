package ingest

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

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/tree"
	"lighter/hub/catalog"
	wire "lighter/store/hub"
)

// Verify reads back all that the hub has of the images of a name that are ready,
// and makes their trees anew from their layers. It returns what is wrong, and
// where; an error says that it could not find out. Progress goes to tell.
func (s *Service) Verify(ctx context.Context, name string, tell func(wire.Progress) error) ([]string, error) {
	ref, err := wire.ParseName(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
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
	j := &job{done: make(chan struct{})}
	found := &findings{}
	go func() {
		defer close(j.done)
		for _, image := range images {
			if err = s.verifyImage(ctx, ref, image, j, found); err != nil {
				return
			}
		}
	}()
	if tellErr := j.await(ctx, tell); tellErr != nil {
		cancel()
		<-j.done
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
	job        *job
	found      *findings
	bad        map[chunk.ID]bool // chunks that cannot be read back
}

func (s *Service) verifyImage(ctx context.Context, ref wire.Ref, row catalog.Image, j *job, found *findings) (err error) {
	dir, err := os.MkdirTemp(s.config.Scratch, "verify-")
	if err != nil {
		return fmt.Errorf("make scratch space: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	v := &verification{Service: s, row: row, repository: ref.Repository, dir: dir, job: j, found: found, bad: map[chunk.ID]bool{}}
	if err := v.checkStatement(ctx); err != nil {
		return err
	}
	if err := v.checkIndex(ctx); err != nil {
		return err
	}
	return v.checkLayers(ctx)
}

func (v *verification) checkStatement(ctx context.Context) error {
	statement, err := v.catalog.Statement(ctx, v.row.Chain)
	if err != nil {
		return err
	}
	if err := statement.Verify(v.row.Chain, []ed25519.PublicKey{v.config.Key.Public().(ed25519.PublicKey)}); err != nil {
		v.found.add("statement about chain %s: %v", v.row.Chain, err)
	}
	return nil
}

// checkLayers reads the layers from the registry again, compares them with their
// records, and the tree that they make with the one that is known.
func (v *verification) checkLayers(ctx context.Context) error {
	m, err := v.registry.Manifest(ctx, v.repository, v.row.Digest)
	if err != nil {
		return v.note(ctx, "manifest", err)
	}
	manifest, err := parseManifest(m)
	if err != nil {
		return v.note(ctx, "manifest", err)
	}
	config, err := own{v.registry, v.repository}.Config(ctx, manifest.Config)
	if err != nil {
		return v.note(ctx, "config", err)
	}
	image, err := parseImage(manifest, config)
	if err != nil {
		return v.note(ctx, "config", err)
	}
	var records []*recordSource
	for _, l := range image.layers {
		path, err := v.checkLayer(ctx, l)
		if err != nil {
			return v.note(ctx, l.name(), err)
		}
		records = append(records, &recordSource{open: func() (io.ReadCloser, error) { return os.Open(path) }})
	}
	return v.checkTree(ctx, records)
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

// checkLayer reads a layer from its blob and returns the path of its record,
// made anew.
func (v *verification) checkLayer(ctx context.Context, l layer) (string, error) {
	name := filepath.Join(v.dir, "layer-"+hexOf(l.DiffID))
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
	reader := &layerReader{layer: l, limits: v.config.Limits, read: v.job.item("check", shortDigest(l.Digest), l.Size).add}
	if err := reader.verify(ctx, blob, record.RecordWriter); err != nil {
		return "", err
	}
	if err := record.finish(); err != nil {
		return "", err
	}
	kept, err := v.recordSum(v.openLayer(ctx, l.DiffID))
	if err != nil {
		return name, v.note(ctx, l.name()+": its record", err)
	}
	if fresh, err := v.recordSum(openFile(name)); err != nil || fresh != kept {
		v.found.add("%s: its record is not what its blob says", l.name())
	}
	return name, nil
}

// recordSum returns the digest of a record's plain bytes.
func (v *verification) recordSum(from io.ReadCloser, err error) (chunk.ID, error) {
	if err != nil {
		return chunk.ID{}, err
	}
	defer from.Close()
	z, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return chunk.ID{}, err
	}
	defer z.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, z)
	return chunk.ID(sum.Sum(nil)), err
}

// checkTree makes the tree from the records that were made anew.
func (v *verification) checkTree(ctx context.Context, records []*recordSource) error {
	merged, err := apply(ctx, records, v.config.Limits)
	if err != nil {
		return v.note(ctx, "tree", err)
	}
	v.nameBad(merged.Root, "/")
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

// nameBad says which files cannot be read, for chunks mean nothing to people.
func (v *verification) nameBad(dir *tree.Node, name string) {
	if len(v.bad) == 0 {
		return
	}
	for _, child := range dir.Children() {
		childName := path.Join(name, child.Name)
		if child.Node.IsDir() {
			v.nameBad(child.Node, childName)
		}
		for _, e := range child.Node.Content.Extents {
			if v.bad[e.ID] {
				v.found.add("file %q: chunk %s cannot be read back", childName, e.ID.Short())
				break
			}
		}
	}
}
