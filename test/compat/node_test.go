package compat

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/node/binds"
	"lighter/node/fuse"
	"lighter/node/prefetch"
	"lighter/node/resolver"
	"lighter/node/trees"
	"lighter/store"
	"lighter/store/disk"
	"lighter/store/origin"
	"lighter/test/testkit/example"
)

// nodeRoot returns the directory of a node as an earlier version left it: the image's tree with its
// statement, its chunks in the cache, its local device, and a bind of the image.
func nodeRoot(t *testing.T) string {
	return example.StoredDir(t, "node-1.tar.zst", func() string {
		root := t.TempDir()
		url, stop := startHub(t, hubRoot(t))
		images, err := newClient(t, url).Images(t.Context(), imageName)
		noError(t, err)
		bound, err := json.Marshal([]binds.Bind{{Dir: "/mnt/app", Name: imageName, Chain: images[0].Chain}})
		noError(t, err)
		noError(t, os.WriteFile(filepath.Join(root, "binds.json"), bound, 0o600))

		n := openNode(t, root, failover(t, url))
		n.chains.Hold(images[0].Chain)
		_, err = n.chains.Mount(t.Context(), images[0].Chain)
		noError(t, err)
		n.checkDevice(n.mounted)
		var pinned disk.Set
		noError(t, n.trees.Chunks(t.Context(), n.mounted, pinned.Add))
		noError(t, n.cache.Pin(n.mounted, imageName, &pinned))
		noError(t, n.trees.MakeLocal(t.Context(), n.mounted))
		n.close()
		stop()
		return root
	})
}

// node has the parts of a node that need neither root's rights nor mounts.
type node struct {
	t       *testing.T
	cache   *disk.Cache
	trees   *trees.Store
	units   *store.Fetcher
	chains  *resolver.Resolver
	binds   *binds.Binds
	mounted chunk.ID // the tree that the resolver has mounted
}

func openNode(t *testing.T, root string, hub *origin.Failover) *node {
	t.Helper()
	n := &node{t: t}
	var err error
	n.cache, err = disk.Open(filepath.Join(root, "cache"), disk.Limits{Size: disk.MinLimit}, quiet)
	noError(t, err)
	n.units = store.NewFetcher(hub, n.cache)
	noError(t, trees.Prepare(root))
	ahead := prefetch.New(func() prefetch.Source { return n.units.Share() }, prefetch.Options{}, quiet)
	n.trees = trees.Open(root, hub, noKernel{}, ahead, quiet)
	noError(t, n.trees.UseRoom(n.cache))
	keys, err := resolver.NewKeys(root, nil, hub)
	noError(t, err)
	n.chains, err = resolver.New(resolver.Config{Root: root, Trust: resolver.TrustChain,
		Answerers: []resolver.Answerer{resolver.NewHub(hub)}, LastReceived: hub.LastReceived,
		Trees: mounts{n.trees, n}, Keys: keys, Log: quiet})
	noError(t, err)
	n.binds = binds.Open(root, hub, n.chains, &durable.Leftovers{Log: quiet}, quiet)
	return n
}

func (n *node) close() {
	n.t.Helper()
	n.trees.Close()
	n.units.Wait()
	noError(n.t, n.cache.Close())
}

// checkDevice reads the device of a tree, as the kernel would.
func (n *node) checkDevice(tree chunk.ID) {
	n.t.Helper()
	defer n.trees.Lock(tree)()
	open, _, err := n.trees.Serve(n.t.Context(), tree)
	noError(n.t, err)
	got := make([]byte, 8192)
	_, err = open.Device.ReadAt(n.t.Context(), got, 0)
	noError(n.t, err)
	want := make([]byte, 8192)
	copy(want, noise(6000)[3000:]) // etc/large
	copy(want[4096:], noise(3000))
	if !slices.Equal(got, want) {
		n.t.Error("the device has other bytes than the image's files")
	}
	noError(n.t, n.trees.Unserve(tree))
}

// noKernel stands for the server of devices.
type noKernel struct{}

func (noKernel) Add(chunk.ID, int64, fuse.Reader) (string, error) { return "", nil }
func (noKernel) Remove(chunk.ID) error                            { return nil }

// mounts mounts nothing, and notes which tree it should have mounted.
type mounts struct {
	*trees.Store
	node *node
}

func (mounts) CheckMountable() error { return nil }
func (mounts) NoteStart(chunk.ID)    {}
func (mounts) Remove(chunk.ID) error { return nil }
func (m mounts) Mount(_ context.Context, tree chunk.ID) (string, error) {
	m.node.mounted = tree
	return "/mounted", nil
}

// TestNodeRoot opens what an earlier node has left, without a hub.
func TestNodeRoot(t *testing.T) {
	n := openNode(t, nodeRoot(t), failover(t, "http://127.0.0.1:1"))
	defer n.close()
	bound := n.binds.List()
	if len(bound) != 1 || bound[0].Dir != "/mnt/app" || bound[0].Name != imageName {
		t.Fatalf("got binds %+v, want one of %s", bound, imageName)
	}
	_, err := n.chains.Mount(t.Context(), bound[0].Chain)
	noError(t, err)
	if n.mounted.IsZero() || !n.trees.Has(n.mounted) {
		t.Fatalf("tree %s is not on the disk", n.mounted)
	}
	n.checkDevice(n.mounted)
	content, err := n.trees.Content(t.Context(), n.mounted, n.cache.Has)
	noError(t, err)
	equal(t, "chunks", content.Chunks, int64(2))
	equal(t, "cached chunks", content.CachedChunks, int64(2))
	damaged, err := n.trees.Scrub(t.Context(), 1<<30)
	noError(t, err)
	equal(t, "damaged trees", damaged, 0)
	pins := n.cache.Pins()
	if len(pins) != 1 || pins[0].ID != n.mounted || pins[0].Label != imageName || pins[0].Cached != 6000 {
		t.Errorf("got pins %+v, want one of %s", pins, imageName)
	}
	scrubbed, err := n.cache.Scrub(t.Context(), 1<<30)
	noError(t, err)
	equal(t, "damaged chunks", scrubbed.Damaged, int64(0))
	if bytes, ok := n.trees.HasLocal(n.mounted); !ok || bytes == 0 {
		t.Errorf("the local device is missing: got %d bytes, %t", bytes, ok)
	}
}
