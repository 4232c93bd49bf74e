// Package report describes the state of a node. `lighter status`, `lighter doctor` and the metrics
// all use this description, so they agree. The package also finds images by the words that
// administrators use for them.
//
// It changes nothing. `lighter status --json` prints the description as JSON.
package report

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/node/binds"
	"lighter/node/completion"
	"lighter/node/direct"
	"lighter/node/directory"
	"lighter/node/front/containerd"
	"lighter/node/front/containerd/blobs"
	"lighter/node/held"
	"lighter/node/imagestore"
	"lighter/node/mount"
	"lighter/node/prefetch"
	"lighter/node/record"
	"lighter/node/resolver"
	"lighter/node/takeover"
	"lighter/node/trees"
	"lighter/store"
	"lighter/store/disk"
	"lighter/store/origin"
)

// Status is the state of a node.
type Status struct {
	Version   string                `json:"version"` // of the node's program
	Root      string                `json:"root"`
	Address   string                `json:"address"`
	MountMode mount.Mode            `json:"mountMode"` // as configured
	RemapIDs  bool                  `json:"remapIDs"`
	Trust     Trust                 `json:"trust"`
	Domain    string                `json:"domain"`
	CAFile    string                `json:"caFile,omitempty"`
	HubKeys   []string              `json:"hubKeys"`
	Signers   []resolver.Signer     `json:"signers"` // the keys in HubKeys, with the statements that they have signed
	Hubs      []origin.Health       `json:"hubs"`
	NoHub     int64                 `json:"pullsWithoutHub"`     // failed lookups and index fetches
	NotLazy   string                `json:"notLazy,omitempty"`   // why no image can be lazy on this machine
	NoMetrics string                `json:"noMetrics,omitempty"` // why http_address has no listener
	Started   time.Time             `json:"started"`
	TakenOver bool                  `json:"takenOver"` // the devices were taken over from a previous daemon
	Keeper    takeover.KeeperStatus `json:"keeper"`
	Cache     disk.Stats            `json:"cache"`
	Fetched   store.FetcherStats    `json:"fetched"`
	Recording Recording             `json:"recording"`
	Ahead     prefetch.Stats        `json:"prefetch"` // of data that was fetched ahead of reads
	Mounts    []MountStatus         `json:"mounts"`
	Images    []ImageStatus         `json:"images"`
	Binds     []binds.Bind          `json:"binds"`
	Lost      []Lost                `json:"lost"`
	Held      []held.Report         `json:"held"`      // reports of this node's trees to the hubs
	Refused   []Refused             `json:"refused"`   // statements on the disk that cannot be verified
	Leftovers []durable.Leftover    `json:"leftovers"` // paths that could not be cleaned up or written

	Completion completion.Status `json:"completion"`
	Direct     direct.Status     `json:"direct"`
	Directory  *directory.Status `json:"directory,omitempty"` // the directory of images, if one is configured
	Blobs      *blobs.Status     `json:"blobs,omitempty"`     // layers in containerd, if they are configured
	ImageStore *ImageStore       `json:"imageStore,omitempty"`
}

// ImageStore is the state of the additional image store for Podman, if one is configured.
type ImageStore struct {
	imagestore.Status
	Trees *directory.Status `json:"trees"` // its images that are mounted, or were mounted
}

// Trust says which pulls get images from the hubs, and why this trust applies.
type Trust struct {
	Trust resolver.Trust `json:"trust"` // resolver.TrustChain or resolver.TrustImage
	Why   string         `json:"why"`
}

// Recording is the state of recorded starts.
type Recording struct {
	record.Stats
	record.ReportStats
}

// Lost is a tree that this daemon could not recover, whose files are damaged on the disk under its
// mount, that no hub has any more, or that is refused because a layer differs from its table.
type Lost struct {
	Tree   chunk.ID `json:"tree"`
	Chains []string `json:"chains"`
	Images []string `json:"images"` // names of the images whose top chain is one of Chains, as far as they are known
	Cause  string   `json:"cause"`
}

// MountStatus is a mounted tree.
type MountStatus struct {
	mount.Mounted
	Source
	Chains []string `json:"chains"`
	Files  int64    `json:"files"`
	Bytes  int64    `json:"bytes"` // bytes of its files
}

// Source says where an image comes from.
type Source struct {
	// Source is one of the words of the node's configuration (sources), or pull: the image was
	// pulled as usual. Empty: that is not known, because its tree is not on this machine.
	Source string `json:"source,omitempty"`
	From   string `json:"from,omitempty"` // the URLs of the hubs, or the repositories that have the layers
}

// SourcePull is the Source of images that were pulled as usual.
const SourcePull = "pull"

// ImageStatus is a pulled image whose top layer has a snapshot. If other layers are above this
// layer, the image is listed only if containerd has named it, or if its tree is on this machine.
type ImageStatus struct {
	Chain string   `json:"chain"`           // its top chain
	Image string   `json:"image,omitempty"` // its reference, if containerd has named it
	Tree  chunk.ID `json:"tree,omitzero"`   // its tree, if the tree is on this machine
	Lazy  bool     `json:"lazy"`
	Source
	Why string `json:"why"` // why it is lazy, and why sources that were asked before did not have it; or why it is not
}

// Reporter reports the state of a node. Its fields are the node's parts, and do not change.
type Reporter struct {
	Fixed      Status // fields that do not change while the node runs
	Hubs       *origin.Failover
	Keys       *resolver.Keys
	Chains     *resolver.Resolver
	Trees      *trees.Store
	Mounts     *mount.Mounts
	Snapshots  containerd.Snapshotters // empty without an address for containerd
	Cache      *disk.Cache
	Units      *store.Fetcher
	Ahead      *prefetch.Prefetcher
	Recorder   *record.Recorder
	Traces     *record.Reporter
	Held       *held.Reporter
	Direct     *direct.Images
	Devices    *takeover.Devices
	Binds      *binds.Binds
	Directory  *directory.Directory
	Blobs      *blobs.Blobs
	ImageStore *imagestore.Store    // nil: none is configured
	StoreTrees *directory.Directory // the trees of the image store
	Completion *completion.Completer
	Leftovers  *durable.Leftovers
}

// Status returns the state of the node. If it returns an error, the state has no images.
func (r *Reporter) Status(ctx context.Context) (Status, error) {
	s := r.Fixed
	s.HubKeys, s.Signers, s.Hubs, s.NoHub = r.Keys.List(), r.Chains.Signers(), r.Hubs.Health(), r.Chains.Unanswered()
	s.TakenOver, s.Keeper = r.Devices.TakenOver(), r.Devices.Keeper()
	s.Cache, s.Fetched, s.Ahead, s.Completion = r.Cache.Stats(), r.Units.Stats(), r.Ahead.Stats(), r.Completion.Status()
	s.Held, s.Directory, s.Blobs = r.Held.Reports(), r.Directory.Status(), r.Blobs.Status()
	s.Direct = r.Direct.Status()
	if r.ImageStore != nil {
		s.ImageStore = &ImageStore{r.ImageStore.Status(), r.StoreTrees.Status()}
	}
	s.Recording = Recording{r.Recorder.Stats(), r.Traces.Stats()}
	s.Binds, s.Refused = r.Binds.List(), r.refused(ctx)
	s.Mounts, s.Images, s.Lost = []MountStatus{}, []ImageStatus{}, []Lost{} // [] in JSON, not null
	s.Leftovers = append(r.Leftovers.List(), r.Trees.Leftovers()...)
	if err := r.Mounts.CheckMountable(); err != nil {
		s.NotLazy = err.Error()
	}
	cached := r.cachedTrees()
	r.addTrees(ctx, &s, cached)
	s.Leftovers = append(s.Leftovers, r.Snapshots.Leftovers()...)
	layers, err := r.Snapshots.Layers(ctx)
	if err != nil {
		return s, err
	}
	for _, layer := range layers {
		if tree := cached[layer.Chain]; layer.Top || !tree.IsZero() {
			s.Images = append(s.Images, r.imageOf(layer, tree))
		}
	}
	return s, nil
}

// cachedTrees returns the trees whose indexes are on this machine, by chain.
func (r *Reporter) cachedTrees() map[string]chunk.ID {
	trees := map[string]chunk.ID{}
	for _, statement := range r.Chains.Statements() {
		if r.Trees.Has(statement.Tree) {
			trees[statement.Chain] = statement.Tree
		}
	}
	return trees
}

// addTrees adds the mounted trees and the lost trees.
func (r *Reporter) addTrees(ctx context.Context, s *Status, cached map[string]chunk.ID) {
	chains := map[chunk.ID][]string{}
	for chain, tree := range cached {
		chains[tree] = append(chains[tree], chain)
	}
	for _, of := range chains {
		slices.Sort(of)
	}
	for _, m := range r.Mounts.Mounted() {
		s.Mounts = append(s.Mounts, MountStatus{Mounted: m, Source: r.sourceOf(m.Tree), Chains: chains[m.Tree],
			Files: m.Header.Files, Bytes: m.Header.Bytes})
	}
	lost := r.Trees.Lost()
	for _, tree := range r.Held.Gone() {
		if r.Trees.Has(tree) && lost[tree] == nil {
			lost[tree] = errGone
		}
	}
	for tree, cause := range r.Direct.Wrong() {
		if r.Trees.Has(tree) {
			lost[tree] = cause
		}
	}
	for tree, cause := range lost {
		s.Lost = append(s.Lost, Lost{Tree: tree, Chains: chains[tree], Images: r.imagesOf(ctx, chains[tree]),
			Cause: cause.Error()})
	}
	slices.SortFunc(s.Mounts, func(a, b MountStatus) int { return cmp.Compare(a.Tree.String(), b.Tree.String()) })
	slices.SortFunc(s.Lost, func(a, b Lost) int { return cmp.Compare(a.Tree.String(), b.Tree.String()) })
}

// errGone says why reads of a tree that no hub has can fail.
var errGone = errors.New("no hub has it any more: its image was removed from the hub, " +
	"and chunks that are not cached on this machine are lost " +
	"(a hub keeps the trees that a node has reported until keep_held_days after the node's last report)")

// sourceOf returns where a tree on this machine comes from.
func (r *Reporter) sourceOf(tree chunk.ID) Source {
	if word, repositories := r.Direct.Made(tree); len(repositories) > 0 {
		return Source{word, strings.Join(repositories, ", ")}
	}
	return Source{"hub", r.Hubs.URL()}
}

// imageOf returns the image whose top layer is layer.
func (r *Reporter) imageOf(layer containerd.Layer, tree chunk.ID) ImageStatus {
	i := ImageStatus{Chain: layer.Chain, Image: layer.Image, Tree: tree, Lazy: layer.Lazy, Why: layer.Why}
	switch {
	case !layer.Lazy:
		i.Source.Source = SourcePull
	case !tree.IsZero():
		i.Source = r.sourceOf(tree)
	}
	switch {
	case i.Why != "":
	case !layer.Lazy:
		i.Why = "not known: it was unpacked by a version of the node that did not record why"
	case tree.IsZero():
		i.Why = "it is part of an image that starts lazily"
	default:
		i.Why = "its tree is on this machine"
	}
	return i
}
