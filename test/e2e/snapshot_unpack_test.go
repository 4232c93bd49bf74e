//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff/apply"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sync/semaphore"

	"lighter/node/front/containerd"
	"lighter/test/testkit/fswalk"
	"lighter/test/testkit/socketdir"
)

// snapshotWorld runs containerd's metadata store and unpacker in this process. They use the
// snapshotter through its socket. A world also has an image.
type snapshotWorld struct {
	db     *metadata.DB
	hub    *snapshotHub
	dir    string                   // of the snapshotter
	blobs  map[digest.Digest][]byte // of the image
	image  ocispec.Descriptor       // of the image's manifest
	chains []string                 // of the image's layers, bottom first
	whole  fswalk.Listing           // the image's files as containerd shows them
}

// newSnapshotWorld returns a world. known is the number of layers of the image that its hub knows,
// from the bottom.
func newSnapshotWorld(t *testing.T, known int) *snapshotWorld {
	t.Helper()
	w := &snapshotWorld{blobs: map[digest.Digest][]byte{}, dir: filepath.Join(t.TempDir(), "snapshots")}
	w.hub = &snapshotHub{t: t, trees: map[string]string{}, known: map[string]bool{}, mounted: map[string]bool{},
		released: map[string]bool{}}
	w.makeImage(t)
	for i, chain := range w.chains {
		tree, err := unpackWithSnapshotter(t, snapshotLayers[:i+1])
		if err != nil {
			t.Fatal(err)
		}
		w.hub.trees[chain] = tree
		w.hub.known[chain] = i < known
	}
	var err error
	if w.whole, err = fswalk.Walk(w.hub.trees[w.chains[len(w.chains)-1]]); err != nil {
		t.Fatal(err)
	}
	w.open(t)
	return w
}

// open starts the snapshotter, containerd's overlay snapshotter and the metadata store.
func (w *snapshotWorld) open(t *testing.T) {
	t.Helper()
	sn, err := containerd.New(containerd.Config{Dir: w.dir, Log: discard}, w.hub)
	if err != nil {
		t.Fatal(err)
	}
	client, stop, err := serveSnapshots(filepath.Join(socketdir.New(t), "s"), sn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
		sn.Close()
	})
	plain, err := overlay.NewSnapshotter(t.TempDir(), overlay.AsynchronousRemove)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { plain.Close() })
	store, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	bdb, err := bolt.Open(filepath.Join(t.TempDir(), "meta.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bdb.Close() })
	w.db = metadata.NewDB(bdb, store, map[string]snapshots.Snapshotter{"lighter": client, "overlayfs": plain})
}

func (w *snapshotWorld) makeImage(t *testing.T) {
	t.Helper()
	var diffIDs []digest.Digest
	var layers []ocispec.Descriptor
	for _, layer := range snapshotLayers {
		layers = append(layers, w.blob(ocispec.MediaTypeImageLayer, layer))
		diffIDs = append(diffIDs, digest.FromBytes(layer))
	}
	config := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
		RootFS: ocispec.RootFS{Type: "layers", DiffIDs: diffIDs}}
	w.image = w.blob(ocispec.MediaTypeImageManifest, asJSON(t, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: w.blob(ocispec.MediaTypeImageConfig, asJSON(t, config)), Layers: layers,
	}))
	for _, chain := range identity.ChainIDs(slices.Clone(diffIDs)) {
		w.chains = append(w.chains, chain.String())
	}
}

func (w *snapshotWorld) blob(mediaType string, b []byte) ocispec.Descriptor {
	w.blobs[digest.FromBytes(b)] = b
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b))}
}

func asJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// in returns a context with a namespace of containerd, and with a lease for the resources that a
// call makes in the namespace.
func (w *snapshotWorld) in(t *testing.T, namespace string) context.Context {
	t.Helper()
	ctx := namespaces.WithNamespace(t.Context(), namespace)
	manager := metadata.NewLeaseManager(w.db)
	found, err := manager.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		lease, err := manager.Create(ctx, leases.WithID("test"))
		if err != nil {
			t.Fatal(err)
		}
		found = []leases.Lease{lease}
	}
	return leases.WithLease(ctx, found[0].ID)
}

// leave ends the lease of a namespace and collects garbage while the hub is unreachable.
func (w *snapshotWorld) leave(t *testing.T, namespace string) {
	t.Helper()
	ctx := namespaces.WithNamespace(t.Context(), namespace)
	if err := metadata.NewLeaseManager(w.db).Delete(ctx, leases.Lease{ID: "test"}); err != nil {
		t.Fatal(err)
	}
	w.setGone(true)
	defer w.setGone(false)
	if _, err := w.db.GarbageCollect(ctx); err != nil {
		t.Fatal(err)
	}
}

// setGone makes the hub unreachable, or reachable again.
func (w *snapshotWorld) setGone(gone bool) {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.hub.gone = gone
}

// pull fetches and unpacks the image with containerd's unpacker, and returns the number of fetched
// layers.
func (w *snapshotWorld) pull(t *testing.T, namespace, snapshotter string, parallel bool) (layers int) {
	t.Helper()
	ctx, store := w.in(t, namespace), w.db.ContentStore()
	var fetched atomic.Int32
	fetch := images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if images.IsLayerType(desc.MediaType) {
			fetched.Add(1)
		}
		return nil, content.WriteBlob(ctx, store, desc.Digest.String(), bytes.NewReader(w.blobs[desc.Digest]), desc)
	})
	options := []unpack.UnpackerOpt{unpack.WithUnpackPlatform(unpack.Platform{
		SnapshotterKey: snapshotter, Snapshotter: w.db.Snapshotter(snapshotter),
		SnapshotterCapabilities: []string{snapshots.RebaseCap},
		Applier:                 apply.NewFileSystemApplier(store),
	})}
	if parallel {
		options = append(options, unpack.WithUnpackLimiter(semaphore.NewWeighted(2)))
	}
	unpacker, err := unpack.NewUnpacker(ctx, store, options...)
	if err != nil {
		t.Fatal(err)
	}
	if err := images.Dispatch(ctx, unpacker.Unpack(images.Handlers(fetch, images.ChildrenHandler(store))), nil,
		w.image); err != nil {
		t.Fatal(err)
	}
	if _, err := unpacker.Wait(); err != nil {
		t.Fatal(err)
	}
	return int(fetched.Load())
}

// run prepares a container's snapshot of the image, and compares the snapshot's files with those of
// containerd's overlay snapshotter.
func (w *snapshotWorld) run(t *testing.T, namespace, snapshotter string) {
	t.Helper()
	ctx, sn := w.in(t, namespace), w.db.Snapshotter(snapshotter)
	mounts, err := sn.Prepare(ctx, "container", w.chains[len(w.chains)-1])
	if err != nil {
		t.Fatal(err)
	}
	compareSnapshot(t, w.whole, listMounted(t, mounts))
	if err := sn.Remove(ctx, "container"); err != nil {
		t.Fatal(err)
	}
}

// empty fails the test if a file of a snapshot, or a mount of a chain, is left.
func (w *snapshotWorld) empty(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if name := e.Name(); name != "metadata.db" && name != "empty" {
			t.Errorf("%s is left in the snapshotter's directory", name)
		}
	}
	for chain := range w.hub.mounted {
		t.Errorf("chain %s is still mounted, want it released", chain)
	}
}

// The hub knows some layers of an image. containerd unpacks the image, layer by layer or in
// parallel, and fetches only the layers from the first unknown one on. A container sees the whole
// image.
func TestSnapshotUnpack(t *testing.T) {
	for _, parallel := range []bool{false, true} {
		// Each string has the number of each known layer, and a dash for each unknown one.
		for _, known := range []string{"----", "12--", "1234", "--34", "-2--", "1-34"} {
			t.Run(fmt.Sprintf("%s parallel %v", known, parallel), func(t *testing.T) {
				w := newSnapshotWorld(t, 0)
				fetched := 0
				for i, c := range known {
					w.hub.known[w.chains[i]] = c != '-'
					if c == '-' && fetched == 0 {
						fetched = len(known) - i
					}
				}
				if got := w.pull(t, "default", "lighter", parallel); got != fetched {
					t.Errorf("containerd fetched %d layers, want %d", got, fetched)
				}
				w.run(t, "default", "lighter")
				w.leave(t, "default")
				w.empty(t)
			})
		}
	}
}

// Namespaces of containerd share lazy layers. The namespace plain pulls the image before the hub
// knows it. The namespaces lazy and second pull it later. second gets the layers that lazy has,
// without the hub, and keeps them when lazy removes its own.
func TestSnapshotTwoNamespaces(t *testing.T) {
	for _, parallel := range []bool{false, true} {
		t.Run(fmt.Sprint("parallel ", parallel), func(t *testing.T) {
			w := newSnapshotWorld(t, 0)
			if n := w.pull(t, "plain", "lighter", parallel); n != len(w.chains) {
				t.Errorf("fetched %d layers, want all: the hub knows none", n)
			}
			for _, chain := range w.chains {
				w.hub.known[chain] = true
			}
			if n := w.pull(t, "lazy", "lighter", parallel); n != 0 {
				t.Errorf("fetched %d layers that the hub knows, want none", n)
			}
			w.setGone(true)
			if n := w.pull(t, "second", "lighter", parallel); n != 0 {
				t.Errorf("fetched %d layers that another namespace has, want none", n)
			}
			w.setGone(false)
			for _, ns := range []string{"plain", "lazy", "second"} {
				w.run(t, ns, "lighter")
			}
			top := w.chains[len(w.chains)-1]
			w.leave(t, "lazy")
			if w.hub.released[top] {
				t.Error("the top chain was released while the namespace second still uses it")
			}
			w.run(t, "second", "lighter")
			w.leave(t, "second")
			if !w.hub.released[top] {
				t.Error("the top chain was not released when the namespace second had removed it")
			}
			w.run(t, "plain", "lighter")
			w.leave(t, "plain")
			w.empty(t)
		})
	}
}

// containerd's overlay snapshotter passes the comparison that the snapshotter has to pass in the
// other tests.
func TestSnapshotOracle(t *testing.T) {
	w := newSnapshotWorld(t, 0)
	w.pull(t, "default", "overlayfs", false)
	w.run(t, "default", "overlayfs")
}
