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

// A frame is an active snapshot or a view, with the stack below it.
type frame struct {
	id     string
	kind   snapshots.Kind
	labels map[string]string
	stack  stack
}

// A stack has the layers below a snapshot: plain snapshots, and below them at most one lazy chain.
// The chain's tree is the merged view of the chain's layer and of all layers below it.
type stack struct {
	plain []string // IDs of snapshots, topmost first
	chain string   // empty if there are only plain snapshots
}

// Prepare makes an active snapshot on parent. If containerd names the chain that it is about to
// unpack, and the resolver claims the chain, Prepare makes a lazy snapshot instead and returns
// ErrAlreadyExists.
func (s *Snapshotter) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	labels, err := labelsOf(opts)
	if err != nil {
		return nil, err
	}
	if chain := chainOfRef(labels[snapshots.LabelSnapshotRef]); chain != "" {
		claimed, why, err := s.claim(ctx, chain, parent, labels)
		if err != nil {
			return nil, err
		}
		if claimed {
			if manifest := labels[labelManifest]; s.noteLazy != nil && manifest != "" && isTop(labels) {
				s.noteLazy(ctx, manifest)
			}
			return nil, fmt.Errorf("chain %s: %w", chain, errdefs.ErrAlreadyExists)
		}
		labels[labelWhy] = why
		if err := s.readyBelow(ctx, parent, labels); err != nil {
			return nil, err
		}
	}
	return s.create(ctx, snapshots.KindActive, key, parent, labels)
}

// readyBelow mounts the tree below an unknown layer before the layer is unpacked. Commit puts the
// layer on this tree, and must not wait for a hub. (If the parent is known already, create mounts
// its tree.)
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

// View makes a read-only snapshot of parent.
func (s *Snapshotter) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	labels, err := labelsOf(opts)
	if err != nil {
		return nil, err
	}
	return s.create(ctx, snapshots.KindView, key, parent, labels)
}

// Mounts returns the mounts of an active snapshot or a view. If the tree below is not mounted, for
// example after a reboot, Mounts mounts it.
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
	if s.noteMounts != nil && f.kind == snapshots.KindActive && f.stack.chain != "" {
		s.noteMounts(key, f.stack.chain)
	}
	return s.mounts(f, lower), nil
}

// labelsOf returns a copy of the labels in opts.
func labelsOf(opts []snapshots.Opt) (map[string]string, error) {
	var info snapshots.Info
	for _, opt := range opts {
		if err := opt(&info); err != nil {
			return nil, err
		}
	}
	labels := map[string]string{}
	maps.Copy(labels, info.Labels)
	return labels, nil
}

// stackOn returns the stack with the committed snapshot parent on top. The context carries a
// transaction.
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

// create makes an active snapshot or a view. It records the snapshot before it mounts the tree
// below, so that this tree cannot be removed meanwhile. If the tree cannot be mounted, create
// removes the snapshot again.
func (s *Snapshotter) create(
	ctx context.Context, kind snapshots.Kind, key, parent string, labels map[string]string,
) ([]mount.Mount, error) {
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

// insert records the snapshot and puts its directory in place. The context carries a writable
// transaction, which also keeps Cleanup away from the directory until the store knows it.
func (s *Snapshotter) insert(
	ctx context.Context, kind snapshots.Kind, key, parent string, labels map[string]string,
) (_ frame, err error) {
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
	for range triedIDs {
		created, err := storage.CreateSnapshot(ctx, kind, key, parent, snapshots.WithLabels(labels))
		if err != nil {
			return frame{}, fmt.Errorf("create snapshot %s: %w", key, err)
		}
		f.id = created.ID
		free, err := s.place(dir, f.id)
		if err != nil || free {
			return f, err
		}
		// The next snapshot in the same transaction gets another ID.
		if _, _, err := storage.Remove(ctx, key); err != nil {
			return frame{}, fmt.Errorf("create snapshot %s: %w", key, err)
		}
	}
	return frame{}, fmt.Errorf("create snapshot %s: leftovers that cannot be moved occupy the directories "+
		"of %d IDs, the last of them %s: delete them", key, triedIDs, filepath.Join(s.dir, f.id))
}

// triedIDs is the number of IDs that are tried if leftovers occupy their directories.
const triedIDs = 64

// newDir makes a snapshot's directory under a temporary name, and returns its path. If it returns a
// path and an error, the directory exists but is not complete.
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

// place gives a directory its final name, the ID. A leftover may have this name: if a transaction
// was not committed, the store gives its ID to another snapshot. place moves a leftover aside. If
// the leftover cannot be moved, free is false.
func (s *Snapshotter) place(dir, id string) (free bool, err error) {
	err = os.Rename(dir, filepath.Join(s.dir, id))
	if errors.Is(err, fs.ErrExist) {
		aside, stay, err := s.moveAside([]string{id})
		if err != nil {
			return false, err
		}
		if len(stay) > 0 {
			s.leftovers.Remove(aside) // an empty directory
			return false, nil
		}
		return true, os.Rename(dir, filepath.Join(s.dir, id))
	}
	return true, err
}

// ownAsParent gives the root of the new upper directory the owner that overlayfs must show: root of
// the user namespace if there is one, or else the owner of the parent's root. If the parent is
// lazy, ownAsTree sets the owner later.
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

// ownAsTree does the same as ownAsParent for a lazy parent. Its caller has mounted the parent's
// tree: lower[0].
func (s *Snapshotter) ownAsTree(f frame, lower []string) error {
	if f.stack.chain == "" || len(f.stack.plain) > 0 || isMapped(f.labels) {
		return nil
	}
	return copyOwner(s.fsPath(f.id), lower[0])
}

func copyOwner(dst, src string) error {
	info, err := os.Stat(src)
	if err != nil {
		return fmt.Errorf("read the owner of the parent's root: %w", err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	return os.Lchown(dst, int(stat.Uid), int(stat.Gid))
}

// abandon removes a snapshot whose client gets an error. The store does not give the snapshot's ID
// to another snapshot, so the directory can be deleted without a transaction.
func (s *Snapshotter) abandon(ctx context.Context, key, id string) {
	err := s.Remove(context.WithoutCancel(ctx), key)
	if err == nil {
		err = os.RemoveAll(filepath.Join(s.dir, id))
	}
	if err != nil && !errdefs.IsNotFound(err) {
		s.log.WarnContext(ctx, "cannot remove an unmountable snapshot: it stays until containerd collects garbage",
			"key", key, "err", err)
	}
}
