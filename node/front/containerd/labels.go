package containerd

import (
	"context"
	"maps"
	"regexp"
	"strings"

	"github.com/containerd/containerd/v2/pkg/namespaces"

	"lighter/node/resolver"
)

// Labels that containerd sets on the snapshots of a pull, besides snapshots.LabelSnapshotRef. It
// sets the cri.* labels only if it is configured to set them. If it is not, such labels come from
// the manifest's annotations and prove nothing. lighter doctor reports that as a problem.
const (
	// labelImage is the reference that the pull fetches.
	labelImage = "containerd.io/snapshot/cri.image-ref"
	// labelManifest is the digest of the manifest that containerd fetched for that reference.
	labelManifest = "containerd.io/snapshot/cri.manifest-digest"
	// labelLayers lists the digests of this layer and of the layers above it, separated by commas.
	labelLayers = "containerd.io/snapshot/cri.image-layers"
	// labelParentChain is the chain below the layer that containerd's unpacker prepares. If layers
	// are unpacked in parallel, only this label names that chain before Commit sets the parent.
	// (containerd 2.4, core/unpack/unpacker.go; the constant there is private.)
	labelParentChain = "containerd.io/snapshot/parent-chain-id"
)

// Labels that this package sets on its snapshots.
const (
	// labelWhy is the reason why a chain is lazy, or not, for users.
	labelWhy = "containerd.io/snapshot/lighter.why"
	// labelKeepBelow protects the chain below a lazy snapshot without parent from containerd's
	// garbage collector. (containerd copies the label to its own record. The name of the
	// snapshotter is part of the label.) Without this label, an image that was unpacked in parallel
	// would lose its lower layers right after the pull. Clients that look for each layer would miss
	// the lower layers, and the next pull would request them again.
	labelKeepBelow = "containerd.io/gc.ref.snapshot.lighter/below"
)

var chainPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// chainOfRef returns the chain of the layer with a reference (snapshots.LabelSnapshotRef), or "".
// The reference is the chainID, or BuildKit's own name for the layer.
func chainOfRef(ref string) string {
	chain := ref
	if hex, ok := strings.CutPrefix(ref, buildKitRef); ok {
		chain = "sha256:" + hex
	}
	if !chainPattern.MatchString(chain) {
		return ""
	}
	return chain
}

// parentChainFrom returns the chain below the layer, or "" if the labels do not name it.
func parentChainFrom(labels map[string]string) string {
	if chain := labels[labelParentChain]; chainPattern.MatchString(chain) {
		return chain
	}
	return ""
}

// requestFrom makes a request from the labels of a snapshot that containerd prepares. below is the
// chain of the snapshot's parent, or "".
func requestFrom(ctx context.Context, labels map[string]string, chain, below string) resolver.Request {
	if below == "" {
		below = labels[labelParentChain]
	}
	namespace, _ := namespaces.Namespace(ctx)
	return resolver.Request{
		Chain: chain, Parent: below, Namespace: namespace,
		Reference: labels[labelImage], Manifest: labels[labelManifest],
		MoreAbove: strings.Contains(labels[labelLayers], ","),
	}
}

// isTop reports whether labels say that the layer is the top of an image.
func isTop(labels map[string]string) bool {
	layers := labels[labelLayers]
	return layers != "" && !strings.Contains(layers, ",")
}

// isSameImage reports whether the labels of two pulls name the same manifest and reference.
func isSameImage(a, b map[string]string) bool {
	return a[labelManifest] != "" && a[labelManifest] == b[labelManifest] && a[labelImage] == b[labelImage]
}

// withLabel returns a copy of labels with one more label.
func withLabel(labels map[string]string, key, value string) map[string]string {
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[key] = value
	return labels
}
