package containerd

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
)

// Labels by which containerd, if it is told to, names the image that is pulled,
// and the layers from this one up, with commas between.
const (
	labelImage  = "containerd.io/snapshot/cri.image-ref"
	labelLayers = "containerd.io/snapshot/cri.image-layers"
	// labelManifest is the digest of the manifest that was pulled.
	labelManifest = "containerd.io/snapshot/cri.manifest-digest"
)

// Layer is a chain of which there is a snapshot.
type Layer struct {
	Chain string
	Image string // the reference of the image whose top it is, if containerd named it
	Lazy  bool
	Why   string // it is lazy, or not; empty if that is not known any more
	Top   bool   // no layer stands on it, or containerd has said that an image ends here
}

// Layers lists the chains of which there are snapshots, sorted. Of a pull that
// goes on the last one counts, though its layer may still be on its way.
func (s *Snapshotter) Layers(ctx context.Context) ([]Layer, error) {
	chains := map[string]string{} // of snapshots, by name
	var infos []snapshots.Info
	err := s.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if chain := layerOf(info); chain != "" {
			chains[info.Name] = chain
			infos = append(infos, info)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	layers := map[string]*Layer{}
	below := map[string]bool{}
	for _, info := range infos {
		chain := chains[info.Name]
		below[cmp.Or(chains[info.Parent], info.Labels[labelParentChain])] = true
		l := layers[chain]
		if l == nil {
			l = &Layer{Chain: chain}
			layers[chain] = l
		}
		_, lazy := chainOf(info.Name)
		if lazy || !l.Lazy { // one of another namespace may be otherwise
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

// isTop tells whether labels say that an image ends with the layer.
func isTop(labels map[string]string) bool {
	above := labels[labelLayers]
	return above != "" && !strings.Contains(above, ",")
}

// nameTop keeps that an image ends with a layer of which there is a lazy snapshot,
// made for an image that goes on above it. (containerd asks for that only in another
// namespace: in the same one it finds the layer itself.) It is for people alone.
func (s *Snapshotter) nameTop(ctx context.Context, name string, labels map[string]string) {
	if !isTop(labels) {
		return
	}
	err := s.store.WithTransaction(ctx, true, func(ctx context.Context) error {
		_, info, _, err := storage.GetInfo(ctx, name)
		if err != nil || isTop(info.Labels) {
			return err
		}
		said := snapshots.Info{Name: name, Labels: labels}
		_, err = storage.UpdateInfo(ctx, said, "labels."+labelLayers, "labels."+labelImage)
		return err
	})
	if err != nil {
		slog.WarnContext(ctx, "an image has no name", "snapshot", name, "cause", err)
	}
}

// unsaid is why a layer is not lazy whose client did not say which chain it is.
const unsaid = "its client did not say which chain it unpacks: ctr 1.x, an import, or an image that was there already"

// whyOf returns why the chain of a snapshot is lazy, or not.
func whyOf(info snapshots.Info) string {
	why := info.Labels[labelWhy]
	if why == "" && info.Kind == snapshots.KindCommitted && info.Labels[snapshots.LabelSnapshotRef] == "" {
		why = unsaid
	}
	return why
}

// layerOf returns the chain that a snapshot is or will be, or nothing. A client
// that does not label its snapshots calls those that it commits by their chains,
// to which containerd adds a namespace and a number.
func layerOf(info snapshots.Info) string {
	if chain, lazy := chainOf(info.Name); lazy {
		return chain
	}
	chain := info.Labels[snapshots.LabelSnapshotRef]
	if chain == "" && info.Kind == snapshots.KindCommitted {
		chain = path.Base(info.Name)
	}
	if !chainPattern.MatchString(chain) {
		return ""
	}
	return chain
}

// Users lists the active snapshots and views that stand on each chain: those of
// containers, mostly.
func (s *Snapshotter) Users(ctx context.Context) (map[string][]string, error) {
	parents := map[string]string{}
	var users []string
	err := s.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		parents[info.Name] = info.Parent
		if info.Kind != snapshots.KindCommitted {
			users = append(users, info.Name)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	on := map[string][]string{}
	for _, user := range users {
		for parent := parents[user]; parent != ""; parent = parents[parent] {
			if chain, lazy := chainOf(parent); lazy { // what is below is part of its tree
				on[chain] = append(on[chain], user)
				break
			}
		}
	}
	return on, nil
}
