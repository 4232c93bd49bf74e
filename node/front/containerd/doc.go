// Package containerd promises containerd a snapshotter: its words in, mounts
// out. A layer that no hub knows is handled exactly as containerd's own overlay
// snapshotter handles it. A layer that a hub knows is answered with "already
// exists", so that containerd never downloads it.
//
// It keeps names, parents and labels in containerd's own metadata store, and
// one directory a snapshot beside it. It refuses to know what a hub, an index
// or a mounted tree is: the methods of Chains stand for all that. It calls
// Claim and Mount, which may wait for the network, while it holds no lock and
// no transaction; Commit, Update, Remove, Stat, Walk, Usage and Cleanup never
// lead to the network at all.
//
// A snapshot that stands for a chain of a hub is called lazy. It is laid down in
// the store under a name that only this package gives out (see lazyName), so
// that neither a crash nor a client can part a snapshot from its chain, and it
// has no directory.
//
//	DIR/metadata.db    what exists (bbolt)
//	DIR/<id>/fs        what a plain snapshot adds to its parent
//	DIR/<id>/work      overlayfs' work directory, of active snapshots
//	DIR/empty          a lower directory where overlayfs wants one: of views of a tree alone, and of layers that
//	                   are unpacked before their parent is known
//	DIR/new-*, rm-*    directories on their way in and out; Cleanup deletes them
//
// Hazards. "Already exists" cannot be taken back: when the tree of a claimed
// chain can never be had, Prepare, View and Mounts fail with ErrUnavailable
// until the images that use the chain are removed. Nothing below DIR that
// carries a number or one of these names may be created by anybody else.
package containerd

import "context"

// Chains is what this package needs to know about chains, and it names each by
// its chainID ("sha256:" and 64 hexadecimal digits). Each lazy snapshot holds its
// chain, and so does each call to Claim or Mount while it lasts.
type Chains interface {
	// Hold says that a chain is needed, Drop that it is not any more. With the last
	// Drop its tree is unmounted and removed. Neither leads to the network. They
	// also come for chains that were never mounted, or never known.
	Hold(chain string)
	Drop(chain string)

	// Claim tells whether a hub knows chain, and why it is lazy now, or not, in a
	// sentence for people; false also means that no hub answered.
	// What no hub knows costs a pull a second or two, all its Claims taken together,
	// and a hub that fails halfway ten; a slow one takes its time.
	// If chain is the top of an image, its tree is verified and on disk before
	// Claim returns true, which takes as long as it takes to arrive. parent is the
	// chain below, as far as it is known, else empty; labels are those that
	// containerd gave. Those that it does not set itself a manifest may have set.
	Claim(ctx context.Context, chain, parent string, labels map[string]string) (known bool, why string)

	// Allow says why a pull may not have chain though it is known, or nil. The arguments
	// are those of Claim. It leads to the network at most as Claim does.
	Allow(ctx context.Context, chain, parent string, labels map[string]string) error

	// Mount makes sure that the tree of chain is on disk and mounted, and returns
	// where: an absolute path without colons or commas, for it becomes a mount
	// option. It may take long, but it is bounded, also if a hub never ends its
	// answer: containerd's garbage collector waits for it, and all that comes
	// behind that.
	Mount(ctx context.Context, chain string) (dir string, err error)

	// Starts says that a container is about to start on a chain that Mount has
	// mounted. It stays on this machine.
	Starts(chain string)

	// Usage returns the bytes and inodes that the next Drop of chain would free.
	// It stays on this machine.
	Usage(chain string) (size, inodes int64)
}
