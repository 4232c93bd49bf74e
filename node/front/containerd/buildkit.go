package containerd

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
)

// BuildKitName is the name under which BuildKit must know the node's snapshotter. BuildKit leaves
// layers to a snapshotter only if it has one of two names. With the other name (overlaybd), it
// would copy base images for COPY --link (docs/decisions/buildkit.md).
const BuildKitName = "stargz"

// BuildKitSocket returns the path of the socket on which the node with that root answers BuildKit.
func BuildKitSocket(root string) string { return filepath.Join(root, "build.sock") }

// buildKitRef begins BuildKit's references of layers, since version 0.34. The SHA-256 of the
// chainID follows. Earlier versions use the chainID. (snapshot/snapshotid.go in BuildKit)
const buildKitRef = "buildkit-layer-snapshot-v1-sha256-"

// Labels that BuildKit sets on the snapshots of layers that it pulls, besides labelImage. It sets
// them after the annotations of the manifest, so no image can bring its own. (util/estargz in
// BuildKit)
const (
	// labelBuildReference is the reference that BuildKit has fetched, as in labelImage.
	labelBuildReference = "containerd.io/snapshot/remote/stargz.reference"
	// labelBuildLayers has the same meaning as labelLayers.
	labelBuildLayers = "containerd.io/snapshot/remote/stargz.layers"
)

// BuildKit is a snapshotter for BuildKit. It reads BuildKit's labels, and knows its references of
// layers. It has snapshots of its own: each client of a snapshotter deletes the snapshots that it
// does not know, so no two clients can have the same ones.
type BuildKit struct{ *Snapshotter }

var (
	_ snapshots.Snapshotter = BuildKit{}
	_ snapshots.Cleaner     = BuildKit{}
)

// NewBuildKit opens BuildKit's snapshots in cfg.Dir as New does.
func NewBuildKit(cfg Config, chains Chains) (BuildKit, error) {
	cfg.BindViews = true
	s, err := New(cfg, chains)
	return BuildKit{s}, err
}

// Prepare does what Snapshotter.Prepare does. Of the labels of a layer, it keeps those that say
// what BuildKit pulls.
func (b BuildKit) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	labels, err := labelsOf(opts)
	if err != nil {
		return nil, err
	}
	if labels[snapshots.LabelSnapshotRef] != "" {
		labels = buildLabels(labels)
	}
	return b.Snapshotter.Prepare(ctx, key, parent, snapshots.WithLabels(labels))
}

// buildLabels returns the labels of a layer that BuildKit pulls as containerd would set them. The
// manifest's digest is that of the reference: BuildKit fetches the contents of this digest from the
// reference's repository. A manifest's digest in a label of its own comes from an annotation, and
// proves nothing.
func buildLabels(labels map[string]string) map[string]string {
	built := map[string]string{snapshots.LabelSnapshotRef: labels[snapshots.LabelSnapshotRef]}
	if labels[labelBuildReference] == "" { // a layer of a build's cache
		return built
	}
	built[labelImage], built[labelLayers] = labels[labelImage], labels[labelBuildLayers]
	if _, manifest, ok := strings.Cut(labels[labelImage], "@"); ok {
		built[labelManifest] = manifest
	}
	return built
}
