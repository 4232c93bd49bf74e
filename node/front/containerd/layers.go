package containerd

import (
	"cmp"
	"context"
	"maps"
	"path"
	"slices"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"

	"lighter/durable"
)

// Layer is a chain with a snapshot.
type Layer struct {
	Chain string
	Image string // reference of the image whose top the layer is; empty: no image's top, or unknown
	Lazy  bool
	Why   string // why the chain is lazy, or not; empty if unknown
	Top   bool   // no layer is above this layer, or containerd said that it is the top of an image
}

// Layers lists the chains with snapshots, sorted. A layer that a pull in progress is still
// downloading is in the list, too.
func (s *Snapshotter) Layers(ctx context.Context) ([]Layer, error) {
	infos, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	chains := map[string]string{} // by the name of the snapshot
	for _, info := range infos {
		chains[info.Name] = layerOf(info)
	}
	layers := map[string]*Layer{}
	below := map[string]bool{} // chains that are below another layer
	for _, info := range infos {
		chain := chains[info.Name]
		if chain == "" {
			continue
		}
		below[cmp.Or(chains[info.Parent], info.Labels[labelParentChain])] = true
		l := layers[chain]
		if l == nil {
			l = &Layer{Chain: chain}
			layers[chain] = l
		}
		_, lazy := chainOf(info.Name)
		if lazy || !l.Lazy { // the reason of a lazy snapshot replaces that of a plain snapshot
			l.Why = cmp.Or(whyOf(info), l.Why)
		}
		l.Lazy = l.Lazy || lazy
		if isTop(info.Labels) {
			l.Top, l.Image = true, info.Labels[labelImage]
		}
	}
	var list []Layer
	for _, chain := range slices.Sorted(maps.Keys(layers)) {
		l := *layers[chain]
		l.Top = l.Top || !below[chain]
		list = append(list, l)
	}
	return list, nil
}

// noteTop updates the labels of a lazy snapshot that was made for an image with more layers above,
// if a pull now says that the layer is the top of another image. (containerd prepares such a layer
// only in another namespace. In the same namespace it finds the snapshot without asking.) Only
// `lighter status` uses this.
func (s *Snapshotter) noteTop(ctx context.Context, name string, labels map[string]string) {
	if !isTop(labels) {
		return
	}
	err := s.store.WithTransaction(ctx, true, func(ctx context.Context) error {
		_, info, _, err := storage.GetInfo(ctx, name)
		if err != nil || isTop(info.Labels) {
			return err
		}
		top := snapshots.Info{Name: name, Labels: labels}
		_, err = storage.UpdateInfo(ctx, top, "labels."+labelLayers, "labels."+labelImage)
		return err
	})
	if err != nil {
		s.log.WarnContext(ctx, "cannot store the name of an image", "snapshot", name, "err", err)
	}
}

// whyUnnamed is why a layer is not lazy if its client did not say which chain it unpacks.
const whyUnnamed = "the client of this pull did not say which chain it unpacks: " +
	"ctr 1.x, an import, or an image that was there already"

// whyOf returns why the chain of a snapshot is lazy, or not.
func whyOf(info snapshots.Info) string {
	why := info.Labels[labelWhy]
	if why == "" && info.Kind == snapshots.KindCommitted && info.Labels[snapshots.LabelSnapshotRef] == "" {
		why = whyUnnamed
	}
	return why
}

// layerOf returns the chain that a snapshot is or will become, or "". A client that does not label
// its snapshots names committed snapshots by their references. containerd puts a namespace and a
// number before such a name.
func layerOf(info snapshots.Info) string {
	if chain, lazy := chainOf(info.Name); lazy {
		return chain
	}
	ref := info.Labels[snapshots.LabelSnapshotRef]
	if ref == "" && info.Kind == snapshots.KindCommitted {
		ref = path.Base(info.Name)
	}
	return chainOfRef(ref)
}

// Users lists the active snapshots and views on each lazy chain. Most of them belong to containers.
func (s *Snapshotter) Users(ctx context.Context) (map[string][]string, error) {
	infos, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	parents := map[string]string{}
	for _, info := range infos {
		parents[info.Name] = info.Parent
	}
	users := map[string][]string{} // by chain
	for _, info := range infos {
		if info.Kind == snapshots.KindCommitted {
			continue
		}
		for parent := info.Parent; parent != ""; parent = parents[parent] {
			if chain, lazy := chainOf(parent); lazy { // the chain's tree contains all layers below
				users[chain] = append(users[chain], info.Name)
				break
			}
		}
	}
	return users, nil
}

// Snapshotters are the snapshotters of a node.
type Snapshotters []*Snapshotter

// Layers lists the chains with snapshots of any snapshotter, sorted. What one snapshotter has of a
// chain is not lost if another one has it, too: the chain is lazy if one of them has it lazily.
func (all Snapshotters) Layers(ctx context.Context) ([]Layer, error) {
	layers := map[string]Layer{}
	for _, s := range all {
		list, err := s.Layers(ctx)
		if err != nil {
			return nil, err
		}
		for _, l := range list {
			other := layers[l.Chain]
			if other.Lazy && !l.Lazy {
				l.Lazy, l.Why = true, other.Why
			}
			l.Image, l.Top = cmp.Or(l.Image, other.Image), l.Top || other.Top
			layers[l.Chain] = l
		}
	}
	var list []Layer
	for _, chain := range slices.Sorted(maps.Keys(layers)) {
		list = append(list, layers[chain])
	}
	return list, nil
}

// Users lists the active snapshots and views of all snapshotters on each lazy chain.
func (all Snapshotters) Users(ctx context.Context) (map[string][]string, error) {
	users := map[string][]string{}
	for _, s := range all {
		of, err := s.Users(ctx)
		if err != nil {
			return nil, err
		}
		for chain, names := range of {
			users[chain] = append(users[chain], names...)
		}
	}
	return users, nil
}

// Leftovers lists the paths that no Cleanup could delete.
func (all Snapshotters) Leftovers() (list []durable.Leftover) {
	for _, s := range all {
		list = append(list, s.Leftovers()...)
	}
	return list
}
