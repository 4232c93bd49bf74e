package containerd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"

	"lighter/node/resolver"
)

// lazyPrefix begins the names of lazy snapshots. Names that containerd gives begin with a
// namespace, and so with a letter or digit. So the names differ, and lazy snapshots sort before all
// others. The order matters: containerd uses the first snapshot in Walk that has the right
// reference and parent, and another namespace may have a plain snapshot with the same reference and
// parent.
const lazyPrefix = "*lazy/"

// draftKey is the key of a lazy snapshot while the transaction that makes it runs.
const draftKey = lazyPrefix + "draft"

// noParent stands for the parent's ID in the name of a lazy snapshot without parent.
const noParent = "0"

// lazyName returns the name of the lazy snapshot with a reference on the snapshot with the ID
// parentID. All namespaces share this snapshot: containerd finds it by reference and parent, and
// removes it when no namespace has it any more.
func lazyName(ref, parentID string) string { return lazyPrefix + ref + "/" + parentID }

// refOf returns the reference that the name of a lazy snapshot contains. lazy is false for other
// names.
func refOf(name string) (ref string, lazy bool) {
	rest, ok := strings.CutPrefix(name, lazyPrefix)
	if !ok {
		return "", false
	}
	ref, _, ok = strings.Cut(rest, "/")
	return ref, ok
}

// chainOf returns the chain of a lazy snapshot, by its name. lazy is false for other names.
func chainOf(name string) (chain string, lazy bool) {
	ref, lazy := refOf(name)
	return chainOfRef(ref), lazy
}

// checkName refuses a client's name that would make a snapshot lazy.
func checkName(name string) error {
	if strings.HasPrefix(name, lazyPrefix) {
		return fmt.Errorf("snapshot name %q: names that begin with %q are reserved: %w",
			name, lazyPrefix, errdefs.ErrInvalidArgument)
	}
	return nil
}

// A lazySnapshot describes the lazy snapshot of a chain on a parent. The snapshot may not exist
// yet.
type lazySnapshot struct {
	name   string
	below  string            // the parent's chain, or "" if unknown
	labels map[string]string // nil: the snapshot does not exist yet
}

// claim makes a lazy snapshot of chain, with parent as its parent, if the resolver claims the chain
// and there is no such snapshot yet. why says why the chain is lazy or not; it is empty if claim
// has found a snapshot that the request may use.
func (s *Snapshotter) claim(
	ctx context.Context, chain, parent string, labels map[string]string,
) (claimed bool, why string, err error) {
	lazy, err := s.findLazy(ctx, labels[snapshots.LabelSnapshotRef], parent)
	if err != nil {
		return false, "", err
	}
	request := requestFrom(ctx, labels, chain, lazy.below)
	if lazy.labels != nil {
		if !isSameImage(lazy.labels, labels) { // the chain was claimed for another image
			if err := s.chains.Allow(ctx, request); err != nil {
				return false, reason(err), ctx.Err()
			}
		}
		s.noteTop(ctx, lazy.name, labels)
		return true, "", nil
	}
	s.chains.Hold(chain)
	made := false
	defer func() {
		if !made { // otherwise the new snapshot holds the chain
			s.chains.Drop(chain)
		}
	}()
	why, err = s.chains.Claim(ctx, request)
	if err != nil {
		return false, reason(err), ctx.Err()
	}
	made, err = s.putLazy(ctx, lazy.name, parent, lazyLabels(parent, labels, why))
	return err == nil, why, err
}

// reason returns the text that tells users why a chain is not lazy.
func reason(err error) string {
	if errors.Is(err, resolver.ErrUnnamed) {
		return err.Error() + " (set enable_remote_snapshot_annotations; " +
			"for CRI, set disable_snapshot_annotations = false)"
	}
	return err.Error()
}

// keepWhy returns an option for Commit that copies labelWhy from the active snapshot.
func keepWhy(active snapshots.Info) snapshots.Opt {
	return func(info *snapshots.Info) error {
		if why, ok := active.Labels[labelWhy]; ok {
			info.Labels = withLabel(info.Labels, labelWhy, why)
		}
		return nil
	}
}

// lazyLabels returns the labels of a lazy snapshot on parent.
func lazyLabels(parent string, labels map[string]string, why string) map[string]string {
	labels = withLabel(labels, labelWhy, why)
	if below := parentChainFrom(labels); parent == "" && below != "" {
		labels[labelKeepBelow] = below
	}
	return labels
}

// findLazy returns the name of the lazy snapshot with a reference on parent, and its labels if it
// exists.
func (s *Snapshotter) findLazy(ctx context.Context, ref, parent string) (lazy lazySnapshot, err error) {
	err = s.store.WithTransaction(ctx, false, func(ctx context.Context) error {
		parentID := noParent
		if parent != "" {
			id, info, _, err := storage.GetInfo(ctx, parent)
			if err != nil {
				return fmt.Errorf("parent %q: %w", parent, err)
			}
			parentID, lazy.below = id, chainOfRef(info.Labels[snapshots.LabelSnapshotRef])
		}
		lazy.name = lazyName(ref, parentID)
		_, info, _, err := storage.GetInfo(ctx, lazy.name)
		if errdefs.IsNotFound(err) {
			return nil
		}
		lazy.labels = info.Labels
		return err
	})
	return lazy, err
}

// putLazy records a lazy snapshot in one transaction. So no other request ever finds it as an
// active snapshot, which would have to be mounted or cleaned up. made is false if another request
// has recorded the snapshot first.
func (s *Snapshotter) putLazy(
	ctx context.Context, name, parent string, labels map[string]string,
) (made bool, err error) {
	err = s.store.WithTransaction(ctx, true, func(ctx context.Context) error {
		if _, err := storage.CreateSnapshot(ctx, snapshots.KindActive, draftKey, parent); err != nil {
			return err
		}
		_, err := storage.CommitActive(ctx, draftKey, name, snapshots.Usage{}, snapshots.WithLabels(labels))
		return err
	})
	if errdefs.IsAlreadyExists(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("record the lazy snapshot %s: %w", name, err)
	}
	s.log.DebugContext(ctx, "recorded a lazy snapshot", "name", name, "parent", parent)
	return true, nil
}

// mountChain mounts the tree of chain, and returns the directory.
func (s *Snapshotter) mountChain(ctx context.Context, chain string) (dir string, err error) {
	s.chains.Hold(chain)
	defer s.chains.Drop(chain)
	dir, err = s.chains.Mount(ctx, chain)
	if err == nil {
		return dir, nil
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("mount chain %s: %w", chain, err)
	}
	// The cause is quoted, not wrapped, because containerd must see ErrUnavailable and no other
	// kind of error.
	return "", fmt.Errorf("mount chain %s: %v: try again when the hub or registry "+
		"that it comes from is reachable and the kernel has what it needs, or remove the images that use the chain "+
		"(ctr images rm --sync IMAGE) and pull them again: %w", chain, err, errdefs.ErrUnavailable)
}
