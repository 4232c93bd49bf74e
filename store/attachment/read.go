package attachment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"lighter/format/attached"
	"lighter/format/index"
	"lighter/format/layer"
	"lighter/format/layer/survey"
	"lighter/format/tree"
	"lighter/registries/push"
	"lighter/store"
	"lighter/store/repository"
)

// limits bound the trees that are made, as on hubs and nodes.
var limits = tree.Limits{Entries: 4_000_000, Bytes: 1 << 40}

// read reads the image's layers, and writes its tables and its index.
func (w *work) read(ctx context.Context) error {
	entries := make([]tree.Entries, len(w.Layers))
	w.surveyed = make([]*layer.Builder, len(w.Layers))
	group, reading := errgroup.WithContext(ctx)
	group.SetLimit(max(w.Jobs, 1))
	for i, d := range w.Layers {
		group.Go(func() error {
			err := w.survey(reading, i, &entries[i])
			if err != nil {
				err = fmt.Errorf("layer %d (%s): %w", i+1, d.Digest, err)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	var sources []tree.LayerSource
	for i := range entries {
		sources = append(sources, entries[i].Source())
	}
	merged, err := tree.Apply(ctx, sources, limits)
	if err != nil {
		return fmt.Errorf("merge the layers: %w", err)
	}
	if err := w.writeIndex(merged); err != nil {
		return err
	}
	return w.writeTables()
}

// survey reads a layer, and makes its table.
func (w *work) survey(ctx context.Context, i int, all *tree.Entries) error {
	d := w.Layers[i]
	var s *survey.Survey
	err := w.From.Whole(ctx, d, func(a store.Answer) (err error) {
		*all = nil
		s, err = survey.Read(w.reporting(a.Body, d), limits, func(e *tree.Entry) error {
			*all = append(*all, e)
			return nil
		}, nil)
		if err != nil {
			err = repository.Judge(a.Body, err)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case "sha256:"+s.Blob.String() != d.Digest.String() || s.Size != d.Size:
		return fmt.Errorf("its %d bytes have the digest sha256:%s: the manifest says %d", s.Size, s.Blob, d.Size)
	case "sha256:"+s.DiffID.String() != w.DiffIDs[i].String():
		return fmt.Errorf("its diffID is sha256:%s: the config says %s", s.DiffID, w.DiffIDs[i])
	}
	w.surveyed[i] = s.Table
	return nil
}

func indexPath(dir string) string { return filepath.Join(dir, "index") }

// writeIndex makes the index of a tree, opens it, and writes its blob.
func (w *work) writeIndex(merged *tree.Tree) error {
	file, err := os.Create(indexPath(w.dir))
	if err != nil {
		return err
	}
	made, err := index.MakeAt(merged, file)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	w.contents.Tree = made.ID()
	if err := w.tree.openIndex(w.dir, w.contents.Tree); err != nil {
		return err
	}
	w.contents.Index, err = w.write(attached.MediaTypeIndex, func(to io.Writer) error {
		return attached.WriteIndex(to, w.tree.extents, w.tree.files[metadataFile])
	})
	return err
}

// writeTables writes the blobs of the tables.
func (w *work) writeTables() error {
	extents, err := w.tree.extents.Numbers()
	if err != nil {
		return err
	}
	for i, made := range w.surveyed {
		table, err := made.Open()
		if err != nil {
			return err
		}
		w.surveyed[i] = nil
		d, err := w.write(attached.MediaTypeTable, func(to io.Writer) error {
			return attached.WriteTable(to, table, extents)
		})
		if err != nil {
			return err
		}
		w.contents.Tables = append(w.contents.Tables, d)
	}
	return nil
}

// write writes a blob to a file.
func (w *work) write(mediaType string, fill func(to io.Writer) error) (v1.Descriptor, error) {
	b, err := push.WriteFile(w.dir, mediaType, fill)
	return b.Descriptor, err
}

// fetch gets the index and the tables of contents that are attached already.
func (w *work) fetch(ctx context.Context, old *attached.Contents, in *repository.Repository) error {
	switch {
	case old.Manifest != w.contents.Manifest || old.Chain != w.contents.Chain || len(old.Tables) != len(w.Layers):
		return fmt.Errorf("the attached index is that of manifest %s", old.Manifest)
	case old.Format != index.Format:
		return fmt.Errorf("the attached index has format %d, and this version writes %d", old.Format, index.Format)
	}
	w.contents.Tree, w.contents.Index, w.contents.Tables = old.Tree, old.Index, old.Tables
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(w.Jobs, 1))
	var once sync.Map // digests: two layers may have the same table
	for _, d := range append([]v1.Descriptor{old.Index}, old.Tables...) {
		if _, again := once.LoadOrStore(d.Digest, true); again {
			continue
		}
		group.Go(func() error {
			return in.Whole(ctx, d, func(a store.Answer) error {
				_, err := w.write(d.MediaType, func(to io.Writer) error {
					_, err := io.Copy(to, w.reporting(a.Body, d))
					return err
				})
				return err
			})
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := w.expandIndex(); err != nil {
		return fmt.Errorf("read the attached index: %w", err)
	}
	return w.tree.openIndex(w.dir, old.Tree)
}

// expandIndex writes the file of the index that was fetched.
func (w *work) expandIndex() error {
	blob, err := os.Open(push.FilePath(w.dir, w.contents.Index.Digest))
	if err != nil {
		return err
	}
	defer blob.Close() // only read
	file, err := os.Create(indexPath(w.dir))
	if err != nil {
		return err
	}
	return errors.Join(attached.ReadIndex(file, blob, w.contents.Tree), file.Close())
}

// reporting returns r, whose progress is reported.
func (w *work) reporting(r io.Reader, d v1.Descriptor) io.Reader {
	return &reported{r: r, report: func(done int64) { w.Report("read", d.Digest.String(), done, d.Size) }}
}

// reported reports how many bytes were read through it.
type reported struct {
	r      io.Reader
	n      int64
	report func(done int64)
}

func (r *reported) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.n += int64(n)
	r.report(r.n)
	return n, err
}
