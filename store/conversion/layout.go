package conversion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/durable"
	"lighter/store/registry"
)

// temporary is the suffix of files of a layout that are being written. The next export overwrites
// such a file that a crash left.
const temporary = ".new"

// errBusy says that another process writes a layout.
var errBusy = errors.New("another process writes it")

// layout is an OCI layout (image-spec, image-layout.md), locked.
type layout struct {
	dir, tag string
	unlock   func()
}

// openLayout opens a layout, or makes one in a directory that is empty or does not exist.
func openLayout(dir, tag string) (*layout, error) {
	l := &layout{dir: dir, tag: tag}
	if err := l.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(l.path("blobs", "sha256"), 0o755); err != nil {
		return nil, err
	}
	now, cancel := context.WithCancelCause(context.Background())
	cancel(errBusy)
	var err error
	if l.unlock, err = durable.LockDir(now, dir); err != nil {
		return nil, err
	}
	b, err := encode(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err == nil {
		err = write(l.path(ocispec.ImageLayoutFile), b)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *layout) path(parts ...string) string {
	return filepath.Join(append([]string{l.dir}, parts...)...)
}

// check refuses a directory that has something else.
func (l *layout) check() error {
	entries, err := os.ReadDir(l.dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	var version ocispec.ImageLayout
	b, err := os.ReadFile(l.path(ocispec.ImageLayoutFile))
	if err == nil {
		err = json.Unmarshal(b, &version)
	}
	if err != nil || version.Version != ocispec.ImageLayoutVersion {
		return fmt.Errorf("%w: the directory is neither empty nor an OCI layout of version %s", ErrNoDestination,
			ocispec.ImageLayoutVersion)
	}
	_, err = l.index()
	return err
}

// index reads what images the layout has.
func (l *layout) index() (index ocispec.Index, err error) {
	index.SchemaVersion, index.MediaType = 2, ocispec.MediaTypeImageIndex
	b, err := os.ReadFile(l.path(ocispec.ImageIndexFile))
	if errors.Is(err, os.ErrNotExist) {
		return index, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &index)
	}
	if err != nil {
		return index, fmt.Errorf("read %s: %w", ocispec.ImageIndexFile, err)
	}
	return index, nil
}

func (l *layout) create(string) (*os.File, error) {
	return os.OpenFile(l.path("blobs", "sha256", "layer"+temporary), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o644)
}

func (l *layout) layer(_ context.Context, file *os.File, d ocispec.Descriptor, _ func(n int64)) error {
	err := file.Sync()
	if err == nil {
		err = durable.Publish(file.Name(), l.blobPath(d))
	}
	if err != nil {
		return fmt.Errorf("write it to the OCI layout %s: %w", l.dir, err)
	}
	return nil
}

func (l *layout) copy(ctx context.Context, from *registry.Original, n int, file *os.File, report func(int64)) error {
	return l.layer(ctx, file, from.Layers[n], report)
}

func (l *layout) blobPath(d ocispec.Descriptor) string {
	return l.path("blobs", "sha256", d.Digest.Encoded())
}

func (l *layout) blob(_ context.Context, d ocispec.Descriptor, b []byte) error {
	if err := write(l.blobPath(d), b); err != nil {
		return fmt.Errorf("write blob %s to the OCI layout %s: %w", d.Digest, l.dir, err)
	}
	return nil
}

func (l *layout) manifest(ctx context.Context, d ocispec.Descriptor, b []byte) error {
	return l.blob(ctx, d, b)
}

// publish replaces what has the layout's tag, or, if there is none, what has no tag.
func (l *layout) publish(ctx context.Context, d ocispec.Descriptor, b []byte) error {
	if err := l.blob(ctx, d, b); err != nil {
		return err
	}
	err := l.add(d)
	if err != nil {
		return fmt.Errorf("add the image to the OCI layout %s: %w", l.dir, err)
	}
	return nil
}

func (l *layout) add(d ocispec.Descriptor) error {
	index, err := l.index()
	if err != nil {
		return err
	}
	index.Manifests = slices.DeleteFunc(index.Manifests, func(old ocispec.Descriptor) bool {
		return old.Annotations[ocispec.AnnotationRefName] == l.tag
	})
	if l.tag != "" {
		d.Annotations = map[string]string{ocispec.AnnotationRefName: l.tag}
	}
	index.Manifests = append(index.Manifests, d)
	b, err := encode(index)
	if err != nil {
		return err
	}
	if err := errors.Join(durable.SyncTree(l.dir), durable.SyncDir(filepath.Dir(filepath.Clean(l.dir)))); err != nil {
		return err
	}
	return write(l.path(ocispec.ImageIndexFile), b)
}

// Close removes what is not finished.
func (l *layout) Close() error {
	err := os.Remove(l.path("blobs", "sha256", "layer"+temporary))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	l.unlock()
	return err
}

// write writes a file that others may read, as durable.Replace does.
func write(path string, b []byte) error {
	f, err := os.OpenFile(path+temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return durable.Publish(path+temporary, path)
}
