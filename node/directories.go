package node

import (
	"os"
	"path/filepath"
	"time"

	"lighter/node/apptainer"
	"lighter/node/directory"
	"lighter/node/imageconfig"
	"lighter/node/imagestore"
)

// The files, in the node's root, that list which trees the directories have.
const directoryFile, storeTreesFile = "directory.json", "image-store.json"

// openDirectories opens the directory of images and the image store. A node without its image store
// is still useful.
func (n *Node) openDirectories(root string) error {
	names, err := n.namesConfig(root)
	if err != nil {
		return err
	}
	n.directory = directory.Open(names)
	n.closers = append(n.closers, n.directory.Close)
	trees := directory.Config{
		Root: root, File: storeTreesFile, Links: noLinks{}, Idle: names.Idle, Beside: n.directory,
		Chains: n.chains, Trees: n.mounts, Leftovers: n.leftovers, Log: n.log,
	}
	if dir := n.config.ImageStore; dir != "" {
		n.store, err = imagestore.Open(imagestore.Config{
			Dir: dir, Patterns: n.config.ImageStoreNames, Refresh: time.Duration(n.config.ImageStoreRefresh),
			Hub: n.hubs, Contents: n.configs, Layers: n.layers,
			Used: func() map[string]bool { return n.storeTrees.Chains() }, Log: n.log,
		})
		if err != nil {
			n.noStore, n.store = err, nil
			n.log.Error("the node runs without its image store: start it again once this is repaired", "err", err)
		} else {
			n.closers = append(n.closers, n.store.Close)
			trees.Dir, trees.Links = imagestore.Trees(dir), n.store
		}
	}
	n.storeTrees = directory.Open(trees)
	n.closers = append(n.closers, n.storeTrees.Close)
	return nil
}

// namesConfig returns the configuration of the directory of images.
func (n *Node) namesConfig(root string) (c directory.Config, err error) {
	c = directory.Config{
		Root: root, File: directoryFile, Dir: n.config.Directory, Idle: time.Duration(n.config.Idle),
		Hub: n.hubs, Configs: &imageconfig.Kept{Dir: filepath.Join(root, "configs"), Reader: n.configs},
		Chains: n.chains, Trees: n.mounts, Leftovers: n.leftovers, Log: n.log,
	}
	if n.config.Flat == FlatApptainer {
		c.Layer = apptainer.Write
	}
	if c.Group, err = n.config.group(); err == nil {
		c.Hosts, err = n.config.links()
	}
	return c, err
}

// noLinks are the links of a node without an image store.
type noLinks struct{}

// HasChain implements directory.Links.
func (noLinks) HasChain(string) bool { return false }

// HasFile implements directory.Links.
func (noLinks) HasFile(string) bool { return false }

// Open implements directory.Links.
func (noLinks) Open(string, uint32) (directory.Stream, error) { return nil, os.ErrNotExist }
