package blobs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"lighter/durable"
)

// contents is the directory of containerd's content store: below it, blobs/sha256/HEX is a blob.
type contents string

func (c contents) blobs() string { return filepath.Join(string(c), "blobs", "sha256") }

func (c contents) path(layer string) string { return filepath.Join(c.blobs(), hexOf(layer)) }

// scratch is where layers are written before they get their names: on the same file system as the
// blobs, and where containerd looks for none.
func (c contents) scratch() string { return filepath.Join(string(c), "lighter") }

// linked returns the name that the link of a layer points to. ok is false if the layer has no link
// of a node: it is a file, or it does not exist.
func (c contents) linked(layer string) (n name, target string, ok bool) {
	target, err := os.Readlink(c.path(layer))
	if err != nil {
		return n, "", false
	}
	n, ok = parseName(filepath.Base(target))
	return n, target, ok && n.layer == layer
}

// link makes a link for a layer in a file system of this package, unless the layer has a file or
// such a link.
func (c contents) link(n name, dir string) error {
	to := filepath.Join(dir, n.String())
	err := os.Symlink(to, c.path(n.layer))
	if !errors.Is(err, fs.ErrExist) {
		if err == nil {
			err = durable.SyncDir(c.blobs())
		}
		return err
	}
	if _, target, ok := c.linked(n.layer); ok && filepath.Dir(target) != dir {
		return c.relink(n, dir) // of a node with another root
	}
	return nil
}

// relink replaces the link of a layer.
func (c contents) relink(n name, dir string) error {
	if err := durable.MkdirAll(c.scratch()); err != nil {
		return err
	}
	made := filepath.Join(c.scratch(), hexOf(n.layer)+".link")
	if err := os.Remove(made); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Join(dir, n.String()), made); err != nil {
		return err
	}
	return c.rename(made, n.layer)
}

func (c contents) rename(made, layer string) error {
	if err := os.Rename(made, c.path(layer)); err != nil {
		return err
	}
	return durable.SyncDir(c.blobs())
}

// links returns the names to which links of nodes point.
func (c contents) links() ([]name, error) {
	entries, err := os.ReadDir(c.blobs())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the blobs of containerd: %w", err)
	}
	var all []name
	for _, entry := range entries {
		if entry.Type()&fs.ModeSymlink != 0 {
			if n, _, ok := c.linked(algorithm + entry.Name()); ok {
				all = append(all, n)
			}
		}
	}
	return all, nil
}

// unlink removes the link of a layer. A file stays.
func (c contents) unlink(layer string) error {
	if _, _, ok := c.linked(layer); !ok {
		return nil
	}
	return os.Remove(c.path(layer))
}

// exists reports whether a layer has a file or a link.
func (c contents) exists(layer string) bool {
	_, err := os.Lstat(c.path(layer))
	return err == nil
}

// errRemoved means that containerd has removed a layer while it was fetched.
var errRemoved = fmt.Errorf("containerd has removed the layer: %w", fs.ErrNotExist)

// publish puts a finished and synced file in the place of a layer's link. If containerd removes the
// link at the same moment, the file stays, and containerd's next garbage collection removes it.
func (c contents) publish(made string, n name) error {
	if now, _, ok := c.linked(n.layer); !ok || now.size != n.size {
		return errRemoved
	}
	return c.rename(made, n.layer)
}
