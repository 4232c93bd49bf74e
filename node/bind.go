package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"lighter/node/mount"
	"lighter/store/hub"
)

// binds are the trees that people have mounted somewhere by name, without
// containerd.
type binds struct {
	mu   sync.Mutex // guards dirs
	dirs map[string]bind
}

// bind is one of them.
type bind struct {
	Dir   string `json:"dir"`
	Name  string `json:"name"`
	Chain string `json:"chain"`
}

// bindImage mounts the tree of the named image at dir, read-only.
func (n *Node) bindImage(ctx context.Context, name, platform, dir string) (bind, error) {
	b := bind{Dir: filepath.Clean(dir), Name: name}
	if !filepath.IsAbs(dir) {
		return b, fmt.Errorf("%q is not an absolute path", dir)
	}
	image, err := n.findImage(ctx, name, platform)
	if err != nil {
		return b, err
	}
	b.Chain = image.Chain
	n.binds.mu.Lock()
	_, taken := n.binds.dirs[b.Dir]
	if !taken {
		n.binds.dirs[b.Dir] = b
	}
	n.binds.mu.Unlock()
	if taken {
		return b, fmt.Errorf("something is mounted at %s already: `lighter unmount %s` first", b.Dir, b.Dir)
	}
	n.chains.Hold(b.Chain)
	if err := n.bindChain(ctx, b); err != nil {
		n.forgetBind(b)
		return b, err
	}
	return b, nil
}

func (n *Node) bindChain(ctx context.Context, b bind) error {
	tree, err := n.chains.Mount(ctx, b.Chain)
	if err != nil {
		return err
	}
	return mount.Bind(tree, b.Dir)
}

// findImage asks the hub for the one image of that name that can be run here.
func (n *Node) findImage(ctx context.Context, name, platform string) (hub.Image, error) {
	images, err := n.hub.Images(ctx, name)
	if err != nil {
		return hub.Image{}, err
	}
	var found []hub.Image
	var seen string
	for _, image := range images {
		if platform != "" && image.Platform != platform {
			continue
		}
		seen = fmt.Sprintf(" (it is %s there: %s)", image.State, image.Error)
		if image.State == hub.StateReady && image.Chain != "" {
			found = append(found, image)
		}
	}
	switch {
	case len(found) == 0:
		return hub.Image{}, fmt.Errorf("hub %s has no image %q that can be mounted%s", n.hub.URL(), name, seen)
	case len(found) > 1:
		return hub.Image{}, fmt.Errorf("image %q has several platforms: choose one with --platform", name)
	}
	return found[0], nil
}

// unbind undoes bindImage.
func (n *Node) unbind(dir string) error {
	dir = filepath.Clean(dir)
	n.binds.mu.Lock()
	b, ok := n.binds.dirs[dir]
	n.binds.mu.Unlock()
	if !ok {
		return fmt.Errorf("lighter has mounted nothing at %s: %w", dir, os.ErrNotExist)
	}
	if err := mount.Unbind(dir); err != nil {
		return err
	}
	n.forgetBind(b)
	return nil
}

func (n *Node) forgetBind(b bind) {
	n.binds.mu.Lock()
	delete(n.binds.dirs, b.Dir)
	n.binds.mu.Unlock()
	n.chains.Drop(b.Chain)
}

func (n *Node) listBinds() []bind {
	n.binds.mu.Lock()
	defer n.binds.mu.Unlock()
	list := make([]bind, 0, len(n.binds.dirs))
	for _, b := range n.binds.dirs {
		list = append(list, b)
	}
	return list
}

func (n *Node) unbindAll() error {
	var errs []error
	for _, b := range n.listBinds() {
		errs = append(errs, n.unbind(b.Dir))
	}
	return errors.Join(errs...)
}
