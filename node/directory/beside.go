package directory

import (
	"slices"
	"sync"
)

// beside has the directories of one node. Their images may have the same trees.
type beside struct {
	mu  sync.Mutex // guards all; held while an image is given up because another one has its tree
	all []*Directory
}

func (b *beside) add(d *Directory) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, d)
}

// list returns the directories.
func (b *beside) list() []*Directory {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.all)
}

// isShared reports whether an image's tree has other users: a container runtime, an administrator,
// or an image that is mounted, or is being mounted.
func (d *Directory) isShared(i *image) bool {
	own, used := 0, false
	for _, other := range d.beside.list() {
		other.mu.Lock()
		for k, o := range other.images {
			if k.chain == i.chain {
				own++
				used = used || o != i && o.bound || other.pending[k] != nil
			}
		}
		other.mu.Unlock()
	}
	return used || d.config.Chains.IsShared(i.chain, own)
}

// leave gives up an image that is not mounted if its tree is not used, or if another image of the
// node's directories has the tree, too. That one holds the tree as long as it is used, whichever
// image its users have looked into. If the tree has users besides these images, the image stays and
// holds the tree, but takes no place. leave reports whether the image takes none. i.work is held.
func (d *Directory) leave(i *image, unused bool) (left bool) {
	if unused {
		d.giveUp(i)
		return true
	}
	d.mu.Lock()
	mounted := i.bound || d.pending[i.key] != nil
	d.mu.Unlock()
	if mounted || i.layered != "" {
		return false
	}
	if d.leaveTo(i) {
		return true
	}
	shared := d.isShared(i)
	d.mu.Lock()
	defer d.mu.Unlock()
	i.shared = shared
	return shared
}

// leaveTo gives up an image if another image of the node's directories has its tree.
func (d *Directory) leaveTo(i *image) bool {
	d.beside.mu.Lock() // so that two images are not given up because of each other
	defer d.beside.mu.Unlock()
	for _, other := range d.beside.all {
		if other.hasTree(i) {
			d.giveUp(i)
			return true
		}
	}
	return false
}

// hasTree reports whether the directory has another image with an image's tree. An image that was
// never mounted does not count: it may be given up at any time.
func (d *Directory) hasTree(i *image) bool {
	tree := d.config.Chains.Tree(i.chain)
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, other := range d.images {
		if other != i && other.mounted &&
			(k.chain == i.chain || !tree.IsZero() && d.config.Chains.Tree(k.chain) == tree) {
			return true
		}
	}
	return false
}
