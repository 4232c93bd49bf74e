package imageconfig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/opencontainers/go-digest"

	"lighter/durable"
	"lighter/wire"
)

// Kept keeps the configs that it has read, in files, so that they can be read while no hub answers.
// It verifies a kept config as one from the registry, but for the hub's statement about the
// manifest, which was verified before the config was kept. It is safe for concurrent use.
type Kept struct {
	Dir    string // has a directory of two files for each manifest
	Reader *Reader

	mu sync.Mutex // guards the files; not held while the registry is read
}

// Config returns the config of an image. Only a config that is not kept is read from the registry.
func (k *Kept) Config(ctx context.Context, image wire.Image) ([]byte, error) {
	dir, err := k.dir(image.Digest)
	if err != nil {
		return nil, fmt.Errorf("get the config of image %s: %w", image.Name, err)
	}
	if all, err := k.read(ctx, dir, image); err == nil {
		return all.Config, nil
	}
	keep := *k.Reader
	keep.Registry = keeper{k.Reader.Registry, files{dir}, &k.mu}
	return keep.Config(ctx, image)
}

// read reads what is kept of an image.
func (k *Kept) read(ctx context.Context, dir string, image wire.Image) (Image, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	kept := Reader{Registry: files{dir}}
	return kept.objects(ctx, image)
}

// Forget removes what is kept of an image, unless wanted says that the image has another user.
// Users must be known to wanted before they call Config: then no config that Config has returned to
// such a user is removed. wanted must not use k.
func (k *Kept) Forget(manifest string, wanted func() bool) error {
	dir, err := k.dir(manifest)
	if err != nil {
		return nil // nothing was kept
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if wanted() {
		return nil
	}
	return os.RemoveAll(dir)
}

// dir returns the directory for a manifest.
func (k *Kept) dir(manifest string) (string, error) {
	d, err := digest.Parse(manifest)
	if err != nil {
		return "", fmt.Errorf("manifest %q: %w", manifest, err)
	}
	return filepath.Join(k.Dir, d.Encoded()), nil
}

// files is a registry of the objects of one image.
type files struct{ dir string }

func (f files) path(kind string) string { return filepath.Join(f.dir, kind) }

// RegistryObject implements Registry.
func (f files) RegistryObject(_ context.Context, _, kind, _ string, take func([]byte) error) error {
	object, err := os.ReadFile(f.path(kind))
	if err != nil {
		return err
	}
	return take(object)
}

// keeper is a registry that keeps what was read from it.
type keeper struct {
	Registry
	files files
	mu    *sync.Mutex // guards the files
}

// RegistryObject implements Registry. An object that cannot be kept is an error: the image would
// not be there without a hub.
func (k keeper) RegistryObject(ctx context.Context, repository, kind, name string, take func([]byte) error) error {
	return k.Registry.RegistryObject(ctx, repository, kind, name, func(object []byte) error {
		if err := take(object); err != nil {
			return err
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if err := os.MkdirAll(k.files.dir, 0o700); err != nil {
			return err
		}
		return durable.Replace(k.files.path(kind), object)
	})
}
