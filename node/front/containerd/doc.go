// Package containerd is the node's front for containerd: a snapshotter that takes containerd's
// requests and returns mounts. A front connects one container runtime to the resolver. A front for
// another runtime would be a package beside this one. The snapshotter handles an unknown layer as
// containerd's own overlay snapshotter does. If the resolver claims the layer's chain, the
// snapshotter answers "already exists", so that containerd never downloads the layer.
//
// All labels of containerd are read here (labels.go). No other package of the node knows them.
// BuildKit speaks the same API, with other labels (buildkit.go). Its snapshots are in a directory
// of their own: a client of a snapshotter deletes the snapshots that it does not know.
//
// The package keeps names, parents and labels in containerd's own metadata store, and one directory
// per snapshot. It knows nothing of hubs, indexes and mounted trees: it calls the methods of
// Chains. Claim, Allow and Mount may wait for the network, so they are called without a lock or
// transaction. Commit, Update, Remove, Stat, Walk, Usage and Cleanup never wait for the network.
//
// The snapshot of a claimed chain is called lazy. It has no directory. It is recorded in one
// transaction, under a name that contains its chain and that no client can give (lazyName). So
// neither a crash nor a client can separate a lazy snapshot from its chain.
//
//	DIR/metadata.db    the snapshots (bbolt)
//	DIR/<id>/fs        the files that a plain snapshot adds to its parent
//	DIR/<id>/work      the work directory of overlayfs, for active snapshots
//	DIR/empty          a lower directory for overlay mounts that need one more: views of a tree
//	                   alone, and layers that are unpacked before their parent is known
//	DIR/new-*, rm-*    directories that are being made or deleted; Cleanup deletes them
//
// "Already exists" cannot be taken back. If the tree of a claimed chain can never be fetched,
// Prepare, View and Mounts fail with ErrUnavailable until the images that use the chain are
// removed.
//
// Other programs must not create files in DIR whose name is a number or is listed here.
package containerd

import (
	"context"

	"lighter/node/resolver"
)

// Chains is what this package needs to know of chains (resolver.Resolver). Each lazy snapshot holds
// its chain. This package also holds a chain during each call of Claim or Mount.
type Chains interface {
	Holder
	Claimer
	Mounter
}

// Holder counts the users of chains. Its methods do not wait for the network.
type Holder interface {
	// Hold adds a user of a chain, and Drop removes one. With the last Drop the chain's tree is
	// unmounted and removed. Both are also called for chains that were never mounted, or are
	// unknown.
	Hold(chain string)
	Drop(chain string)
	// Usage returns the bytes and inodes that the next Drop of chain would free.
	Usage(chain string) (size, inodes int64)
}

// Claimer decides which layers need not be downloaded. Its methods wait for the network within the
// bounds of package resolver.
type Claimer interface {
	// Claim decides whether the node claims the chain of a layer. If it does, why is the reason,
	// for users. If it does not, err is the reason. If the chain is claimed as the top of an image,
	// its tree is on disk when Claim returns.
	Claim(ctx context.Context, layer resolver.Request) (why string, err error)
	// Allow returns an error if a pull must not get a chain that was claimed for another pull.
	Allow(ctx context.Context, layer resolver.Request) error
}

// Mounter mounts trees.
type Mounter interface {
	// Mount mounts the tree of a chain, and fetches the tree before if it is missing. It returns
	// the directory: an absolute path without colons or commas, because the path becomes a mount
	// option. It returns in bounded time, because containerd's garbage collector waits for it.
	Mount(ctx context.Context, chain string) (dir string, err error)
	// NoteStart is called when a container is about to start from a mounted chain. It does not wait
	// for the network.
	NoteStart(chain string)
}

var _ Chains = (*resolver.Resolver)(nil)
