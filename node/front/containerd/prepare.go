package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
)

// A frame is an active snapshot or a view, and what it stands on.
type frame struct {
	id     string
	kind   snapshots.Kind
	labels map[string]string
	stack  stack
}

// A stack is what a snapshot stands on: plain snapshots, and below them at most
// one chain, whose tree is the merged view of everything further down.
type stack struct {
	plain []string // IDs, topmost first
	chain string   // empty if plain snapshots are all there is
}

// Prepare makes an active snapshot on top of parent. When containerd says that
// it is about to unpack a chain, and a hub knows the chain, the answer is a lazy
// snapshot and ErrAlreadyExists instead.
func (s *Snapshotter) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	labels, err := labelsOf(opts)
	if err != nil {
		return nil, err
	}
	if chain := chainFrom(labels); chain != "" {
		claimed, why, err := s.claim(ctx, chain, parent, labels)
		if err != nil {
			return nil, err
		}
		if claimed {
			return nil, fmt.Errorf("chain %s: %w", chain, errdefs.ErrAlreadyExists)
		}
		labels[labelWhy] = why
		if err := s.readyBelow(ctx, parent, labels); err != nil {
			return nil, err
		}
	}
	return s.create(ctx, snapshots.KindActive, key, parent, labels)
}

// readyBelow makes sure, before an unknown layer is unpacked, of the tree that it
// will be put on with Commit, which must not wait for a hub. (With a parent that
// is known now, mounting it does the same.)
func (s *Snapshotter) readyBelow(ctx context.Context, parent string, labels map[string]string) error {
	below := parentChainFrom(labels)
	if parent != "" || below == "" {
		return nil
	}
	lazy, err := s.findLazy(ctx, below, "")
	if err != nil || lazy.labels == nil {
		return err
	}
	_, err = s.mountChain(ctx, below)
	return err
}

// View makes a read-only view of parent.
func (s *Snapshotter) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	labels, err := labelsOf(opts)
	if err != nil {
		return nil, err
	}
	return s.create(ctx, snapshots.KindView, key, parent, labels)
}

// Mounts returns the mounts of an active snapshot or a view again, and mounts
// the tree below again if need be, as after a reboot.
func (s *Snapshotter) Mounts(ctx context.Context, key string) ([]mount.Mount, error) {
	var f frame
	err := s.store.WithTransaction(ctx, false, func(ctx context.Context) error {
		snapshot, err := storage.GetSnapshot(ctx, key)
		if err != nil {
			return fmt.Errorf("snapshot %s: %w", key, err)
		}
		_, info, _, err := storage.GetInfo(ctx, key)
		if err != nil {
			return fmt.Errorf("snapshot %s: %w", key, err)
		}
		f = frame{id: snapshot.ID, kind: snapshot.Kind, labels: info.Labels}
		f.stack, err = stackOn(ctx, info.Parent)
		return err
	})
	if err != nil {
		return nil, err
	}
	lower, err := s.lower(ctx, f)
	if err != nil {
		return nil, err
	}
	return s.mounts(f, lower), nil
}

// labelsOf returns the labels that opts give, for the caller to change.
func labelsOf(opts []snapshots.Opt) (map[string]string, error) {
	var info snapshots.Info
	for _, opt := range opts {
		if err := opt(&info); err != nil {
			return nil, err
		}
	}
	labels := maps.Clone(info.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	return labels, nil
}

// stackOn returns the stack whose top is the committed snapshot parent. The
// context carries a transaction.
func stackOn(ctx context.Context, parent string) (stack, error) {
	var st stack
	for parent != "" {
		if chain, ok := chainOf(parent); ok {
			st.chain = chain
			break
		}
		id, info, _, err := storage.GetInfo(ctx, parent)
		if err != nil {
			return stack{}, fmt.Errorf("parent %q: %w", parent, err)
		}
		st.plain = append(st.plain, id)
		parent = info.Parent
	}
	return st, nil
}

// create makes an active snapshot or a view. The snapshot is in the store before
// the tree below it is asked for, so that nobody can remove that tree meanwhile;
// if it cannot be had, the snapshot goes again.
func (s *Snapshotter) create(ctx context.Context, kind snapshots.Kind, key, parent string, labels map[string]string) ([]mount.Mount, error) {
	if err := checkName(key); err != nil {
		return nil, err
	}
	var f frame
	err := s.store.WithTransaction(ctx, true, func(ctx context.Context) (err error) {
		f, err = s.insert(ctx, kind, key, parent, labels)
		return err
	})
	if err != nil {
		return nil, err
	}
	lower, err := s.lower(ctx, f)
	if err == nil {
		err = s.ownAsTree(f, lower)
	}
	if err != nil {
		s.abandon(ctx, key, f.id)
		return nil, err
	}
	return s.mounts(f, lower), nil
}

// insert records the snapshot and puts its directory in place. The context
// carries a writable transaction, which is also what keeps Cleanup away from the
// directory until the store knows it.
func (s *Snapshotter) insert(ctx context.Context, kind snapshots.Kind, key, parent string, labels map[string]string) (_ frame, err error) {
	dir, err := s.newDir(kind)
	defer func() {
		if err != nil && dir != "" {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err != nil {
		return frame{}, fmt.Errorf("make a snapshot directory: %w", err)
	}
	f := frame{kind: kind, labels: labels}
	if f.stack, err = stackOn(ctx, parent); err != nil {
		return frame{}, err
	}
	if err := s.ownAsParent(dir, f); err != nil {
		return frame{}, err
	}
	for range takenIDs {
		created, err := storage.CreateSnapshot(ctx, kind, key, parent, snapshots.WithLabels(labels))
		if err != nil {
			return frame{}, fmt.Errorf("create snapshot %s: %w", key, err)
		}
		f.id = created.ID
		free, err := s.place(dir, f.id)
		if err != nil || free {
			return f, err
		}
		// Within one transaction the next snapshot has another ID.
		if _, _, err := storage.Remove(ctx, key); err != nil {
			return frame{}, fmt.Errorf("create snapshot %s: %w", key, err)
		}
	}
	return frame{}, fmt.Errorf("create snapshot %s: the directories of its ID and of the %d before, such as %s, are taken by what cannot be moved away: delete them",
		key, takenIDs-1, filepath.Join(s.dir, f.id))
}

// takenIDs is how many IDs are tried whose directories are taken by leftovers.
const takenIDs = 64

// newDir makes a snapshot's directory under a passing name, and returns its path
// (also along with an error, once there is one).
func (s *Snapshotter) newDir(kind snapshots.Kind) (string, error) {
	dir, err := os.MkdirTemp(s.dir, newPrefix)
	if err != nil {
		return "", err
	}
	if err := os.Mkdir(filepath.Join(dir, "fs"), 0o755); err != nil {
		return dir, err
	}
	if kind == snapshots.KindActive {
		err = os.Mkdir(filepath.Join(dir, "work"), 0o711)
	}
	return dir, err
}

// place gives the directory its final name. Something may stand there: the store
// hands an ID out again when the transaction that took it first was not
// committed. Nobody refers to that, and it makes way; if it cannot, the name is not
// free.
func (s *Snapshotter) place(dir, id string) (free bool, err error) {
	err = os.Rename(dir, filepath.Join(s.dir, id))
	if errors.Is(err, fs.ErrExist) {
		stay, err := s.moveAside([]string{id})
		if err != nil || len(stay) > 0 {
			return false, err
		}
		return true, os.Rename(dir, filepath.Join(s.dir, id))
	}
	return true, err
}

// ownAsParent gives the root of the new upper directory the owner that overlayfs
// must show: the root of the user namespace if there is one, else that of the
// parent's root. If the parent is a tree, ownAsTree does that later.
func (s *Snapshotter) ownAsParent(dir string, f frame) error {
	if isMapped(f.labels) {
		uid, gid, err := mappedRoot(f.labels)
		if err != nil {
			return err
		}
		return os.Lchown(filepath.Join(dir, "fs"), uid, gid)
	}
	if len(f.stack.plain) == 0 {
		return nil
	}
	return copyOwner(filepath.Join(dir, "fs"), s.fsPath(f.stack.plain[0]))
}

// ownAsTree does what ownAsParent does, for a parent that is lazy: its root can
// be looked at only now that it is mounted.
func (s *Snapshotter) ownAsTree(f frame, lower []string) error {
	if f.stack.chain == "" || len(f.stack.plain) > 0 || isMapped(f.labels) {
		return nil
	}
	return copyOwner(s.fsPath(f.id), lower[0])
}

func copyOwner(dst, src string) error {
	info, err := os.Stat(src)
	if err != nil {
		return fmt.Errorf("look at the parent's root: %w", err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	return os.Lchown(dst, int(stat.Uid), int(stat.Gid))
}

// abandon takes a snapshot back that nobody was told of. Its ID is not handed out
// again, so its directory can go without a transaction.
func (s *Snapshotter) abandon(ctx context.Context, key, id string) {
	err := s.Remove(context.WithoutCancel(ctx), key)
	if err == nil {
		err = os.RemoveAll(filepath.Join(s.dir, id))
	}
	if err != nil && !errdefs.IsNotFound(err) {
		s.log.WarnContext(ctx, "cannot remove an unmountable snapshot: it stays until containerd collects garbage", "key", key, "err", err)
	}
}
