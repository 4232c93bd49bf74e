//go:build e2e

package system

import (
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/rootfs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
)

// changeFiles changes a container's files in many ways.
const changeFiles = `set -e
echo new > /etc/new; echo changed >> /etc/hostname; rm /etc/issue; chmod 700 /etc/fstab; touch /etc/profile
rm -r /etc/skel; mkdir /etc/skel; echo x > /etc/skel/x; rm -r /usr/share/doc; mv /etc/debian_version /etc/moved
ln /etc/new /usr/new; ln /etc/passwd /etc/passwd2; ln -s new /etc/link; rm /bin/sh.distrib 2>/dev/null || true
mkfifo /fifo; cp -a /etc/default /etc/copy; rm -r /etc/default; mv /etc/copy /etc/default`

// The layer of what a container of a lazy image has changed is made without fetching anything of
// the image. It has the same bytes as the layer that containerd's own differ makes, which reads the
// whole image.
func TestDiffFetchesNothing(t *testing.T) {
	s := start(t, site.Options{Differ: true, NodeArgs: []string{"--prefetch=false", "--record=false"}}, "+base")
	pull(t, s, site.Lighter, "base")
	c, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("base"), "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := c.Exec(t.Context(), "sh", "-c", changeFiles); err != nil {
		t.Fatalf("change the container's files: %v: %s", err, out)
	}
	diff := func() string { return ctr(t, s, "snapshots", "--snapshotter", site.Lighter, "diff", c.ID) }
	var ours, theirs string
	if moved := images.Received(t, s, func() { ours = diff() }); moved > 64<<10 {
		t.Errorf("the layer took %d bytes from the hub, want at most 64 KiB", moved)
	}
	layerIsKept(t, s, digest.FromString(ours))
	if err := s.Machine.StopNode(); err != nil {
		t.Fatal(err)
	}
	if out, err := s.Machine.Ctr(t.Context(), "snapshots", "--snapshotter", site.Lighter, "diff", c.ID); err == nil {
		t.Errorf("without a node, the layer has %d bytes; want an error", len(out))
	}
	if err := s.Machine.StartNode(t.Context(), "--containerd", ""); err != nil {
		t.Fatal(err)
	}
	reconnect(t, s)
	if moved := images.Received(t, s, func() { theirs = diff() }); moved < 10<<20 {
		t.Errorf("the layer of containerd's differ took %d bytes from the hub, want the image", moved)
	}
	if ours != theirs {
		t.Errorf("the layer has %d bytes and digest %s, want %d bytes and %s as from containerd's differ", len(ours),
			digest.FromString(ours), len(theirs), digest.FromString(theirs))
	}
}

// layerIsKept checks that containerd has a layer whose client has ended, and can unpack it: it does
// so itself, because the node applies no layers. It also compares the snapshots of other
// snapshotters itself.
func layerIsKept(t *testing.T, s *site.Site, blob digest.Digest) {
	t.Helper()
	client, err := containerd.New(s.Machine.ContainerdSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx := namespaces.WithNamespace(t.Context(), s.Machine.Namespace())
	info, err := client.ContentStore().Info(ctx, blob)
	if err != nil {
		t.Fatal(err)
	}
	ctx, release, err := client.WithLease(ctx) // keeps the snapshot
	if err != nil {
		t.Fatal(err)
	}
	defer release(ctx)
	snapshots := client.SnapshotService(site.Overlayfs)
	mounts, err := snapshots.Prepare(ctx, "applied", "")
	if err != nil {
		t.Fatal(err)
	}
	layer := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: blob, Size: info.Size}
	applied, err := client.DiffService().Apply(ctx, layer, mounts)
	if diffID := info.Labels["containerd.io/uncompressed"]; err != nil || applied.Digest.String() != diffID {
		t.Errorf("unpack the layer: got %+v, %v; want the diffID %s", applied, err, diffID)
	}
	if got, err := rootfs.CreateDiff(ctx, "applied", snapshots, client.DiffService()); err != nil {
		t.Errorf("compare a snapshot of overlayfs: got %+v, %v; want no error", got, err)
	}
	if err := snapshots.Remove(ctx, "applied"); err != nil {
		t.Error(err)
	}
}
