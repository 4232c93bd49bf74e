package containerd

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
)

// labelParentChain is the label by which containerd's unpacker names the chain
// below the one that it prepares (containerd 2.4, core/unpack/unpacker.go; the
// constant there is private). Where layers are unpacked in parallel, it is all
// that says so: the parent itself comes with Commit.
const labelParentChain = "containerd.io/snapshot/parent-chain-id"

// keepBelow is the label by which a lazy snapshot without a parent keeps the
// chain below it from containerd's garbage collector (containerd copies the
// label to its own record; the name of the snapshotter is part of it). Without,
// an image that was unpacked in parallel would lose its lower layers as soon as
// the pull is over: clients that look at each layer would then miss them, and
// the next pull would have to ask for them again.
const keepBelow = "containerd.io/gc.ref.snapshot.lighter/below"

// lazyPrefix begins the names of lazy snapshots. The names that containerd gives
// to snapshots begin with a namespace, and so with a letter or digit, which has
// two uses: the two never meet, and lazy ones come first in every Walk.
// containerd takes the first snapshot with the right reference and parent, and a
// plain one of another namespace may have both.
const lazyPrefix = "*lazy/"

// draft is the key of a lazy snapshot inside the transaction that makes it.
const draft = lazyPrefix + "draft"

// noParent is the parent's ID in the name of a lazy snapshot that has none.
const noParent = "0"

var chainPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// lazyName returns the name of the one lazy snapshot of chain on the snapshot
// with the ID parentID. Namespaces share it: containerd finds it by reference
// and parent, and removes it when no namespace has it any more.
func lazyName(chain, parentID string) string { return lazyPrefix + chain + "/" + parentID }

// chainOf returns the chain of a lazy snapshot by its name, or false.
func chainOf(name string) (chain string, lazy bool) {
	rest, ok := strings.CutPrefix(name, lazyPrefix)
	if !ok {
		return "", false
	}
	chain, _, ok = strings.Cut(rest, "/")
	return chain, ok
}

// checkName refuses a name from a client that would make a snapshot lazy.
func checkName(name string) error {
	if strings.HasPrefix(name, lazyPrefix) {
		return fmt.Errorf("snapshot name %q: names that begin with %q are reserved: %w", name, lazyPrefix, errdefs.ErrInvalidArgument)
	}
	return nil
}

// claim answers for chain on top of the snapshot parent: true if there is a lazy
// snapshot of it now, or else why not.
func (s *Snapshotter) claim(ctx context.Context, chain, parent string, labels map[string]string) (claimed bool, why string, err error) {
	name, below, found, err := s.findLazy(ctx, chain, parent)
	if err != nil {
		return false, "", err
	}
	if below == "" {
		below = labels[labelParentChain]
	}
	if found != nil {
		if !isSameImage(found, labels) { // it was claimed for another image, in another namespace
			if err := s.chains.Allow(ctx, chain, below, labels); err != nil {
				return false, err.Error(), ctx.Err()
			}
		}
		s.nameTop(ctx, name, labels)
		return true, "", nil
	}
	s.chains.Hold(chain)
	made := false
	defer func() {
		if !made { // the snapshot holds the chain from here
			s.chains.Drop(chain)
		}
	}()
	known, why := s.chains.Claim(ctx, chain, below, labels)
	if !known {
		return false, why, ctx.Err()
	}
	made, err = s.putLazy(ctx, name, parent, lazyLabels(parent, labels, why))
	return err == nil, why, err
}

// isSameImage tells whether the labels of two pulls name the same manifest and reference.
func isSameImage(a, b map[string]string) bool {
	return a[labelManifest] != "" && a[labelManifest] == b[labelManifest] && a[labelImage] == b[labelImage]
}

// labelWhy is where a snapshot keeps why its chain is lazy, or not.
const labelWhy = "containerd.io/snapshot/lighter.why"

// keepWhy has Commit keep it.
func keepWhy(active snapshots.Info) snapshots.Opt {
	return func(info *snapshots.Info) error {
		if why, ok := active.Labels[labelWhy]; ok {
			info.Labels = maps.Clone(info.Labels)
			if info.Labels == nil {
				info.Labels = map[string]string{}
			}
			info.Labels[labelWhy] = why
		}
		return nil
	}
}

// lazyLabels returns the labels of a lazy snapshot on parent.
func lazyLabels(parent string, labels map[string]string, why string) map[string]string {
	labels = maps.Clone(labels)
	labels[labelWhy] = why
	if below := labels[labelParentChain]; parent == "" && chainPattern.MatchString(below) {
		labels[keepBelow] = below
	}
	return labels
}

// findLazy returns the name that a lazy snapshot of chain has on top of parent,
// the chain that parent stands for as far as that is known, and the labels of such a
// snapshot if there is one already.
func (s *Snapshotter) findLazy(ctx context.Context, chain, parent string) (name, below string, found map[string]string, err error) {
	err = s.store.WithTransaction(ctx, false, func(ctx context.Context) error {
		parentID := noParent
		if parent != "" {
			id, info, _, err := storage.GetInfo(ctx, parent)
			if err != nil {
				return fmt.Errorf("parent %q: %w", parent, err)
			}
			parentID, below = id, info.Labels[snapshots.LabelSnapshotRef]
		}
		name = lazyName(chain, parentID)
		_, info, _, err := storage.GetInfo(ctx, name)
		if errdefs.IsNotFound(err) {
			return nil
		}
		found = info.Labels
		return err
	})
	return name, below, found, err
}

// putLazy lays a lazy snapshot down, in one transaction: there is never an
// active one that could be mounted or left over. Somebody else may have been
// faster, which is as good: then it was not made.
func (s *Snapshotter) putLazy(ctx context.Context, name, parent string, labels map[string]string) (made bool, err error) {
	err = s.store.WithTransaction(ctx, true, func(ctx context.Context) error {
		if _, err := storage.CreateSnapshot(ctx, snapshots.KindActive, draft, parent); err != nil {
			return err
		}
		_, err := storage.CommitActive(ctx, draft, name, snapshots.Usage{}, snapshots.WithLabels(labels))
		return err
	})
	if errdefs.IsAlreadyExists(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("record the lazy snapshot %s: %w", name, err)
	}
	slog.DebugContext(ctx, "lazy snapshot", "name", name, "parent", parent)
	return true, nil
}

// mountChain returns where the tree of chain is mounted.
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
	// The cause is quoted, not wrapped: what containerd must see is that the chain
	// is unavailable, not, say, that something or other was not found.
	return "", fmt.Errorf("mount chain %s: %v: try again when that is over (the hub can be reached, the kernel has what it needs), or remove the images that use the chain "+
		"(ctr images rm --sync IMAGE) and pull them again: %w", chain, err, errdefs.ErrUnavailable)
}
