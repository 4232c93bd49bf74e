//go:build e2e

package e2e

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/core/snapshots/testsuite"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"lighter/node/front/containerd"
	"lighter/node/resolver"
	"lighter/socket"
	"lighter/test/testkit/fswalk"
	"lighter/test/testkit/tarball"
)

var discard = slog.New(slog.DiscardHandler)

// The snapshotter passes containerd's conformance suite over its socket.
func TestSnapshotSuite(t *testing.T) {
	// The suite skips its test of renamed directories only for a snapshotter with the name
	// overlayfs.
	testsuite.SnapshotterSuite(t, "overlayfs", func(_ context.Context, root string) (snapshots.Snapshotter,
		func() error, error) {
		sn, err := containerd.New(containerd.Config{Dir: root, Log: discard}, &snapshotHub{})
		if err != nil {
			return nil, nil, err
		}
		client, stop, err := serveSnapshots(root+".sock", sn)
		return client, func() error { return errors.Join(stop(), sn.Close()) }, err
	})
}

// serveSnapshots serves sn on a socket until stop is called, and returns a client of the socket.
func serveSnapshots(path string, sn snapshots.Snapshotter) (client snapshots.Snapshotter, stop func() error,
	err error) {
	ctx, cancel := context.WithCancel(context.Background())
	listener, err := socket.Listen(ctx, path)
	if err != nil {
		return nil, func() error { cancel(); return nil }, err
	}
	ended := make(chan error, 1)
	go func(listener net.Listener) { ended <- containerd.Serve(ctx, listener, sn, nil) }(listener)
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	stop = func() error {
		cancel()
		return errors.Join(conn.Close(), <-ended)
	}
	return proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), "lighter"), stop, err
}

// snapshotHub stands in for the hub and the node's mounts. It mounts nothing: its trees are
// directories that the test has made.
type snapshotHub struct {
	t     *testing.T
	trees map[string]string // the directory of each chain's tree

	mu       sync.Mutex      // guards the fields below
	known    map[string]bool // the chains that Claim claims
	gone     bool            // the hub is unreachable: Mount fails, and a call of Claim fails the test
	mounted  map[string]bool // chains that Mount has returned, until the last Drop
	released map[string]bool // chains after the last Drop, until Mount returns them again
	holds    map[string]int  // users of each chain: calls of Hold without a Drop
}

func (h *snapshotHub) Claim(_ context.Context, layer resolver.Request) (why string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		h.t.Errorf("Claim was called for chain %s, want no call while the hub is unreachable", layer.Chain)
	}
	if !h.known[layer.Chain] {
		return "", errors.New("the chain is not known")
	}
	return "the chain is known", nil
}

func (*snapshotHub) Allow(context.Context, resolver.Request) error { return nil }

func (h *snapshotHub) Mount(_ context.Context, chain string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone || h.trees[chain] == "" {
		return "", errors.New("the hub is unreachable")
	}
	h.mounted[chain] = true
	delete(h.released, chain)
	return h.trees[chain], nil
}

func (h *snapshotHub) Hold(chain string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.holds == nil {
		h.holds = map[string]int{}
	}
	h.holds[chain]++
}

func (h *snapshotHub) Drop(chain string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.holds[chain]--; h.holds[chain] > 0 {
		return
	}
	delete(h.mounted, chain)
	if h.released != nil {
		h.released[chain] = true
	}
}

func (h *snapshotHub) NoteStart(string) {}

func (h *snapshotHub) Usage(string) (size, inodes int64) { return 1 << 20, 1 }

// snapshotLayers are layers with whiteouts, opaque directories, replaced files and hard links.
var snapshotLayers = [][]byte{
	tarball.Of(
		tarball.Dir("etc", tarball.Mode(0o755)), tarball.File("etc/a", "a one"), tarball.File("etc/b", "b one"),
		tarball.Dir("dir", tarball.Mode(0o750), tarball.Owner(7, 8)), tarball.File("dir/x", "x"),
		tarball.Dir("dir/sub"), tarball.File("dir/sub/y", "y"),
		tarball.Dir("usr"), tarball.Dir("usr/bin"), tarball.File("usr/bin/tool", "#!", tarball.Mode(0o4755)),
		tarball.Link("usr/bin/other", "usr/bin/tool"),
		tarball.Symlink("bin", "usr/bin"), tarball.Dir("gone"), tarball.File("gone/file", "soon"),
	),
	tarball.Of(
		tarball.Dir("etc", tarball.Mode(0o755)), tarball.Whiteout("etc/b"), tarball.File("etc/c", "c two"),
		tarball.Dir("dir", tarball.Mode(0o700)), tarball.Opaque("dir"), tarball.File("dir/z", "z two"),
		tarball.Whiteout("gone"),
	),
	tarball.Of(
		tarball.File("etc/a", "a three", tarball.Owner(1000, 1000)), tarball.Whiteout("dir/z"),
		tarball.File("dir/x", "x three", tarball.Xattr("user.k", "v")),
		tarball.File("gone", "now a file"),
	),
	tarball.Of(
		tarball.Whiteout("etc/c"), tarball.Dir("dir"), tarball.Opaque("dir"), tarball.File("dir/last", "four"),
		tarball.File("etc/b", "b four"),
	),
}

// listMounted mounts a snapshot and lists its files.
func listMounted(t *testing.T, mounts []mount.Mount) fswalk.Listing {
	t.Helper()
	var found fswalk.Listing
	err := mount.WithTempMount(t.Context(), mounts, func(root string) (err error) {
		found, err = fswalk.Walk(root)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// compareSnapshot compares the files of two snapshots. It ignores the times of directories, because
// they depend on when the layers were unpacked.
func compareSnapshot(t *testing.T, want, got fswalk.Listing) {
	t.Helper()
	for _, line := range fswalk.Diff(want, got, fswalk.Options{ComparesTime: func(_ string, a,
		_ fswalk.Entry) bool {
		return !a.IsDir()
	}}) {
		t.Error(line)
	}
}

// inMounted mounts a snapshot and calls f with the mount point.
func inMounted(t *testing.T, mounts []mount.Mount, f func(root string) error) {
	t.Helper()
	if err := mount.WithTempMount(t.Context(), mounts, f); err != nil {
		t.Fatal(err)
	}
}

// Two containers write to a lazy image, and one of them is committed. A new container starts from
// the result. A view of the image is unchanged, and cannot be written.
func TestSnapshotCommitOnTree(t *testing.T) {
	w := newSnapshotWorld(t, 4)
	w.pull(t, "default", "lighter", false)
	sn, ctx := w.db.Snapshotter("lighter"), w.in(t, "default")
	top := w.chains[len(w.chains)-1]
	for _, key := range []string{"first", "second"} {
		mounts, err := sn.Prepare(ctx, key, top)
		if err != nil {
			t.Fatal(err)
		}
		inMounted(t, mounts, func(root string) error {
			return errors.Join(
				os.Remove(filepath.Join(root, "etc/a")),
				os.WriteFile(filepath.Join(root, "etc/b"), []byte("changed by "+key), 0o600),
				os.Rename(filepath.Join(root, "usr/bin/tool"), filepath.Join(root, "tool")),
			)
		})
	}
	if err := sn.Commit(ctx, "committed", "first"); err != nil {
		t.Fatal(err)
	}
	mounts, err := sn.Prepare(ctx, "third", "committed")
	if err != nil {
		t.Fatal(err)
	}
	inMounted(t, mounts, func(root string) error {
		if b, err := os.ReadFile(filepath.Join(root, "etc/b")); string(b) != "changed by first" || err != nil {
			t.Errorf("the new container reads %q (%v), want the changed file", b, err)
		}
		if _, err := os.Lstat(filepath.Join(root, "etc/a")); !os.IsNotExist(err) {
			t.Errorf("the deleted file in the new container: %v, want ENOENT", err)
		}
		return nil
	})
	view, err := sn.View(ctx, "view", top)
	if err != nil {
		t.Fatal(err)
	}
	compareSnapshot(t, w.whole, listMounted(t, view))
	inMounted(t, view, func(root string) error {
		if err := os.WriteFile(filepath.Join(root, "new"), nil, 0o600); err == nil {
			t.Error("write to a view succeeded, want an error")
		}
		return nil
	})
}

// In the snapshot of a container in a user namespace, the owners of files are mapped into the
// namespace.
func TestSnapshotInUserNamespace(t *testing.T) {
	chain := "sha256:" + strings.Repeat("1", 64)
	tree := t.TempDir()
	if err := errors.Join(os.Chmod(tree, 0o755), os.WriteFile(filepath.Join(tree, "file"), []byte("x"),
		0o644)); err != nil {
		t.Fatal(err)
	}
	hub := &snapshotHub{t: t, known: map[string]bool{chain: true}, trees: map[string]string{chain: tree},
		mounted: map[string]bool{}}
	sn, err := containerd.New(containerd.Config{Dir: t.TempDir(), RemapIDs: true, Log: discard}, hub)
	if err != nil {
		t.Fatal(err)
	}
	defer sn.Close()
	_, err = sn.Prepare(t.Context(), "extract", "",
		snapshots.WithLabels(map[string]string{snapshots.LabelSnapshotRef: chain}))
	if !errdefs.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	var top string
	if err := sn.Walk(t.Context(), func(_ context.Context,
		info snapshots.Info) error {
		top = info.Name
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	mounts, err := sn.Prepare(t.Context(), "container", top, snapshots.WithLabels(map[string]string{
		snapshots.LabelSnapshotUIDMapping: "0:100000:65536", snapshots.LabelSnapshotGIDMapping: "0:200000:65536"}))
	if err != nil {
		t.Fatal(err)
	}
	found := listMounted(t, mounts)
	for _, path := range []string{".", "file"} {
		if e := found[path]; e.UID != 100000 || e.GID != 200000 {
			t.Errorf("owner of %s: got %d:%d, want 100000:200000", path, e.UID, e.GID)
		}
	}
}
