package directory

import (
	"cmp"
	"context"
	"errors"

	"lighter/node/mount"
	"lighter/wire"
)

// addLayer mounts the layer of an image over its tree, if images get layers, and returns the path
// of both. i.work is held.
func (d *Directory) addLayer(ctx context.Context, i *image, tree string) (path string, err error) {
	if d.config.Layer == nil || i.layered != "" {
		return cmp.Or(i.layered, tree), nil
	}
	if i.manifest == "" {
		return "", errors.New("an earlier version of the node has listed it without its manifest, and no hub answers")
	}
	config, err := d.config.Configs.Config(ctx, wire.Image{Name: i.name, Digest: i.manifest, Chain: i.chain})
	if err != nil {
		return "", err
	}
	merged := mount.MergedDir(d.config.Root, d.config.File)
	i.layered, err = mount.Merge(merged, d.config.Root, tree, func(dir string) error {
		return d.config.Layer(dir, tree, config)
	})
	return i.layered, err
}

// removeLayer unmounts the layer of an image that is not mounted over its name. i.work is held.
func (d *Directory) removeLayer(i *image) error {
	if i.layered == "" {
		return nil
	}
	d.mu.Lock()
	i.tree = ""
	d.mu.Unlock()
	err := mount.Split(i.layered)
	if err == nil {
		i.layered = ""
	}
	return err
}

// forgetConfig removes the kept config of an image that was given up, unless another name stands
// for the same image.
func (d *Directory) forgetConfig(manifest string) error {
	if d.config.Configs == nil || manifest == "" {
		return nil // none was kept
	}
	return d.config.Configs.Forget(manifest, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		for k := range d.images {
			if k.manifest == manifest {
				return true
			}
		}
		return false
	})
}
