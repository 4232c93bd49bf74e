package node

import (
	"cmp"
	"context"
	"runtime/debug"
	"slices"
	"time"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/node/front/containerd"
	"lighter/node/mount"
	"lighter/node/prefetch"
	"lighter/node/resolver"
	"lighter/node/takeover"
	"lighter/store"
	"lighter/store/disk"
	"lighter/store/origin"
)

// Status is what a node says of itself.
type Status struct {
	Version   string                `json:"version"` // of the program
	Root      string                `json:"root"`
	Address   string                `json:"address"`
	MountMode mount.Mode            `json:"mountMode"` // as configured
	RemapIDs  bool                  `json:"remapIDs"`
	Trust     TrustStatus           `json:"trust"`
	Scope     string                `json:"scope"`
	CAFile    string                `json:"caFile,omitempty"`
	HubKeys   []string              `json:"hubKeys"`
	Signers   []resolver.Signer     `json:"signers"` // the same keys, with what they have signed
	Hubs      []origin.Health       `json:"hubs"`
	NoHub     int64                 `json:"pullsWithoutHub"`     // look-ups and indexes that did not come in time, or not at all
	NotLazy   string                `json:"notLazy,omitempty"`   // why no image can be lazy on this machine
	NoMetrics string                `json:"noMetrics,omitempty"` // why nobody can ask for them, although there is an address
	Started   time.Time             `json:"started"`
	TakenOver bool                  `json:"takenOver"` // the devices are a former daemon's
	Keeper    takeover.KeeperStatus `json:"keeper"`
	Cache     disk.Stats            `json:"cache"`
	Fetched   store.UnitsStats      `json:"fetched"`
	Recording RecordingStatus       `json:"recording"`
	Ahead     prefetch.Stats        `json:"ahead"` // what was fetched before anybody read it
	Mounts    []MountStatus         `json:"mounts"`
	Images    []ImageStatus         `json:"images"`
	Binds     []Bind                `json:"binds"`
	Lost      []LostStatus          `json:"lost"`
	Refused   []RefusedStatus       `json:"refused"`   // statements on the disk that cannot be verified
	Leftovers []durable.Leftover    `json:"leftovers"` // what could not be cleaned up, or written

	Completion CompletionStatus `json:"completion"`
}

// LostStatus is a tree that a former daemon served and this one cannot, or that is
// damaged on the disk under its mount.
type LostStatus struct {
	Tree   chunk.ID `json:"tree"`
	Chains []string `json:"chains"`
	Images []string `json:"images"` // that end with one of them, as far as they were named
	Cause  string   `json:"cause"`
}

// MountStatus is one mounted tree.
type MountStatus struct {
	mount.Mounted
	Chains []string `json:"chains"`
	Files  int64    `json:"files"`
	Bytes  int64    `json:"bytes"` // of its files
}

// ImageStatus is one image that was pulled: one that another stands on only if
// containerd has said so, or its tree is here. It is there as long as its top
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
	s := Status{Version: Version(), Root: n.config.Root, Address: n.config.Address, MountMode: n.config.MountMode,
		RemapIDs: n.config.RemapIDs, Trust: n.config.trust(n.hubs), Scope: n.config.Scope, CAFile: n.config.CAFile, HubKeys: n.keys.List(), Signers: n.chains.Signers(),
		Hubs: n.hubs.Health(), NoHub: n.chains.Unanswered(), Started: n.started, TakenOver: n.devices.TakenOver(), Keeper: n.devices.Keeper(), Cache: n.cache.Stats(), Fetched: n.units.Stats(), Ahead: n.prefetcher.Stats(), Recording: n.recordingStatus(),
		Binds: n.binds.list(), Mounts: []MountStatus{}, Images: []ImageStatus{}, Lost: []LostStatus{}}
	s.Completion = n.completion.get()
	s.Refused = n.refused(ctx)
	s.Leftovers = append(n.leftovers.List(), n.trees.Leftovers()...)
	if n.noMetrics != nil {
		s.NoMetrics = n.noMetrics.Error()
	}
	if err := n.mounts.Mountable(); err != nil {
		s.NotLazy = err.Error()
	}
	trees := map[string]chunk.ID{} // by chain
	chains := map[chunk.ID][]string{}
	for _, statement := range n.chains.Statements() {
		if !n.trees.Has(statement.Tree) {
			continue // on its way
		}
		trees[statement.Chain] = statement.Tree
		chains[statement.Tree] = append(chains[statement.Tree], statement.Chain)
	}
	for _, m := range n.mounts.Mounted() {
		s.Mounts = append(s.Mounts, MountStatus{Mounted: m, Chains: chains[m.Tree], Files: m.Header.Files, Bytes: m.Header.Bytes})
	}
	for tree, cause := range n.trees.Lost() {
		s.Lost = append(s.Lost, LostStatus{Tree: tree, Chains: chains[tree], Images: n.imagesOf(ctx, chains[tree]), Cause: cause.Error()})
	}
	slices.SortFunc(s.Mounts, func(a, b MountStatus) int { return slices.Compare(a.Tree[:], b.Tree[:]) })
	slices.SortFunc(s.Lost, func(a, b LostStatus) int { return slices.Compare(a.Tree[:], b.Tree[:]) })
	slices.SortFunc(s.Binds, func(a, b Bind) int { return cmp.Compare(a.Dir, b.Dir) })
	if n.snapshot == nil {
		return s, nil
	}
	s.Leftovers = append(s.Leftovers, n.snapshot.Leftovers()...)
	layers, err := n.snapshot.Layers(ctx)
	if err != nil {
		return s, err
	}
	for _, layer := range layers {
		if tree := trees[layer.Chain]; layer.Top || !tree.IsZero() {
			s.Images = append(s.Images, imageStatus(layer, tree))
		}
	}
	return s, nil
}

// modes counts the mounted trees by how the kernel gets at them.
func (s *Status) modes() map[string]int {
	modes := map[string]int{}
	for _, mode := range []mount.Mode{mount.File, mount.Loop} {
		modes[string(mode)] = 0
	}
	for _, m := range s.Mounts {
		modes[string(m.Mode)]++
	}
	return modes
}

// unsigned counts the statements that one of the pinned keys has not signed, of the key
// that lacks most.
func (s *Status) unsigned() (most int) {
	for _, signer := range s.Signers {
		most = max(most, len(signer.Missing))
	}
	return most
}

// localMounts counts the mounted trees that the kernel reads without the daemon.
func (s *Status) localMounts() (n int) {
	for _, m := range s.Mounts {
		if m.Local {
			n++
		}
	}
	return n
}

// imageStatus says of an image what is known of it.
func imageStatus(layer containerd.Layer, tree chunk.ID) ImageStatus {
	s := ImageStatus{Chain: layer.Chain, Image: layer.Image, Tree: tree, Lazy: layer.Lazy, Why: layer.Why}
	switch {
	case s.Why != "":
	case !layer.Lazy:
		s.Why = "not known: it was unpacked by a version of the node that did not keep why"
	case tree.IsZero():
		s.Why = "the hub knows it as part of an image"
	default:
		s.Why = "its tree is on this machine"
	}
	return s
}

// Version returns the version of this program, as the Go tool has stamped it.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}
