package node

import (
	"cmp"
	"context"
	"slices"
	"time"

	"lighter/format/chunk"
	"lighter/node/mount"
	"lighter/node/snapshot"
	"lighter/store"
	"lighter/store/disk"
)

// Status is what a node says of itself.
type Status struct {
	Root    string           `json:"root"`
	Address string           `json:"address"`
	Hub     string           `json:"hub"`
	HubKeys []string         `json:"hubKeys"`
	Started time.Time        `json:"started"`
	Cache   disk.Stats       `json:"cache"`
	Fetched store.UnitsStats `json:"fetched"`
	Mounts  []MountStatus    `json:"mounts"`
	Images  []ImageStatus    `json:"images"`
	Binds   []Bind           `json:"binds"`
}

// MountStatus is one mounted tree.
type MountStatus struct {
	mount.Mounted
	Chains []string `json:"chains"`
	Files  int64    `json:"files"`
	Bytes  int64    `json:"bytes"` // of its files
}

// ImageStatus is one image that was pulled: of one that another stands on, as far
// as containerd has said so, or its tree is here. It is there as long as its top
// layer's snapshot is.
type ImageStatus struct {
	Chain string   `json:"chain"`           // its top chain
	Image string   `json:"image,omitempty"` // its reference, if containerd named it
	Tree  chunk.ID `json:"tree,omitzero"`   // if it is here
	Lazy  bool     `json:"lazy"`
	Why   string   `json:"why"` // it is lazy, or not
}

// Status returns what the node says of itself.
func (n *Node) Status(ctx context.Context) (Status, error) {
	s := Status{Root: n.config.Root, Address: n.config.Address, Hub: n.hub.URL(), HubKeys: n.keys.List(), Started: n.started,
		Cache: n.cache.Stats(), Fetched: n.units.Stats(), Binds: n.binds.list(), Mounts: []MountStatus{}, Images: []ImageStatus{}}
	trees := map[string]chunk.ID{} // by chain
	chains := map[chunk.ID][]string{}
	for _, statement := range n.chains.Statements() {
		if !n.trees.Has(statement.Tree) {
			continue // on its way
		}
		trees[statement.Chain] = statement.Tree
		chains[statement.Tree] = append(chains[statement.Tree], statement.Chain)
	}
	for _, m := range n.trees.Mounted() {
		s.Mounts = append(s.Mounts, MountStatus{Mounted: m, Chains: chains[m.Tree], Files: m.Header.Files, Bytes: m.Header.Bytes})
	}
	slices.SortFunc(s.Mounts, func(a, b MountStatus) int { return slices.Compare(a.Tree[:], b.Tree[:]) })
	slices.SortFunc(s.Binds, func(a, b Bind) int { return cmp.Compare(a.Dir, b.Dir) })
	if n.snapshot == nil {
		return s, nil
	}
	layers, err := n.snapshot.Layers(ctx)
	if err != nil {
		return s, err
	}
	why := map[decision]string{}
	for _, e := range n.chains.Events() {
		why[decision{e.Chain, e.Lazy}] = e.Why
	}
	for _, layer := range layers {
		if tree := trees[layer.Chain]; layer.Top || !tree.IsZero() {
			s.Images = append(s.Images, imageStatus(layer, tree, why[decision{layer.Chain, layer.Lazy}]))
		}
	}
	return s, nil
}

// decision is what was decided about a chain.
type decision struct {
	chain string
	lazy  bool
}

// imageStatus says of an image what is remembered of it, or else what can be
// seen.
func imageStatus(layer snapshot.Layer, tree chunk.ID, remembered string) ImageStatus {
	s := ImageStatus{Chain: layer.Chain, Image: layer.Image, Tree: tree, Lazy: layer.Lazy, Why: remembered}
	switch {
	case remembered != "":
	case !layer.Lazy:
		s.Why = "it was unpacked before this node was started"
	case tree.IsZero():
		s.Why = "the hub knows it as part of an image"
	default:
		s.Why = "its tree is on this machine"
	}
	return s
}
