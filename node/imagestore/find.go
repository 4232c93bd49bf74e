package imagestore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lighter/wire"
)

// ErrNoImage says that a store has no image of a name.
var ErrNoImage = errors.New("no image in the image store")

// Found is an image of a store, as a reader of the store sees it.
type Found struct {
	Config []byte
	// Tree is the path of a symbolic link. To follow it mounts the image's tree: in the reader's
	// user namespace, the files have the owners that they have in the image.
	Tree string
}

// Find returns the image that the store in dir has under the first of some names of a hub. It needs
// no privileges. The error wraps ErrNoImage if the store has none of the names, and fs.ErrNotExist
// if there is no store.
func Find(dir string, names []string) (Found, error) {
	var images []image
	if err := readJSON(imagesFile(dir), &images); err != nil {
		return Found{}, fmt.Errorf("read image store %s: %w", dir, err)
	}
	for _, name := range names {
		ref, err := wire.ParseName(name)
		if err != nil {
			return Found{}, err
		}
		if n := slices.IndexFunc(images, func(i image) bool { return i.isNamed(ref) }); n >= 0 {
			return images[n].found(dir)
		}
	}
	return Found{}, fmt.Errorf("%w %s under the name %s", ErrNoImage, dir, names[0])
}

// isNamed reports whether a name of a hub names the image.
func (i image) isNamed(ref wire.Ref) bool {
	if ref.Digest == "" {
		return slices.Contains(i.Names, withHost(ref.Name()))
	}
	repository := withHost(ref.NamedRepository())
	return slices.Contains(i.BigDataNames, manifestPrefix+ref.Digest) &&
		slices.ContainsFunc(i.Names, func(name string) bool {
			rest, ok := strings.CutPrefix(name, repository)
			return ok && strings.IndexAny(rest, ":@") == 0
		})
}

func (i image) found(dir string) (Found, error) {
	config, err := os.ReadFile(filepath.Join(imageDir(dir, i.ID), fileOf("sha256:"+i.ID)))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: the image has just been removed", err)
	}
	if err != nil {
		return Found{}, fmt.Errorf("read the config of an image: %w", err)
	}
	return Found{Config: config, Tree: filepath.Join(layerDir(dir, i.Layer), "diff")}, nil
}
