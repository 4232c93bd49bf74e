//go:build e2e

package differ

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/diff/walking"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// A bench has a differ, containerd's own differ, and a content store of containerd for both, all in
// this process.
type bench struct {
	t       *testing.T
	ctx     context.Context
	differ  *Differ
	walking diff.Comparer
	db      *metadata.DB
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil { // no test waits for a disk
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	blobs, err := local.NewStore(filepath.Join(dir, "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := bolt.Open(filepath.Join(dir, "meta.db"), 0o600, &bolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	b := &bench{t: t, ctx: namespaces.WithNamespace(t.Context(), "test"), db: metadata.NewDB(file, blobs, nil)}
	if err := b.db.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.differ = &Differ{dir: filepath.Join(dir, "snapshots"), store: b.db.ContentStore(),
		leases: metadata.NewLeaseManager(b.db), slots: make(chan struct{}, 1), log: discard}
	b.walking = walking.NewWalkingDiff(b.db.ContentStore())
	return b
}

// dir makes the directory of a snapshot, and returns its path.
func (b *bench) dir(id string) string {
	b.t.Helper()
	dir := filepath.Join(b.differ.dir, id, "fs")
	if err := errors.Join(os.MkdirAll(dir, 0o755),
		os.MkdirAll(filepath.Join(b.differ.dir, id, "work"), 0o711)); err != nil {
		b.t.Fatal(err)
	}
	return dir
}

// active returns the mounts of the active snapshot id on lower directories, topmost first.
func (b *bench) active(id string, lower ...string) []mount.Mount {
	dir := b.dir(id)
	return over(fmt.Sprintf("index=off workdir=%s/%s/work upperdir=%s lowerdir=%s", b.differ.dir, id, dir,
		strings.Join(lower, ":")))
}

// view returns the mounts of a view of directories, topmost first.
func (b *bench) view(dirs ...string) []mount.Mount {
	if len(dirs) == 1 {
		return bound(dirs[0], "ro", "rbind")
	}
	return over("index=off lowerdir=" + strings.Join(dirs, ":"))
}

// mounted mounts what mounts say, and calls fn with the directory.
func (b *bench) mounted(mounts []mount.Mount, fn func(root string)) {
	b.t.Helper()
	if err := mount.WithTempMount(b.ctx, mounts, func(root string) error { fn(root); return nil }); err != nil {
		b.t.Fatal(err)
	}
}

// compare checks that both differs write the same layer. No layer stays in the store.
func (b *bench) compare(what string, lower, upper []mount.Mount, opts ...diff.Opt) {
	b.t.Helper()
	want, err := b.walking.Compare(b.ctx, lower, upper, opts...)
	if err != nil {
		b.t.Fatalf("%s: containerd's differ: %v", what, err)
	}
	wantInfo, err := b.differ.store.Info(b.ctx, want.Digest)
	if err != nil {
		b.t.Fatal(err)
	}
	b.remove(want)
	got, err := b.differ.Compare(b.ctx, lower, upper, opts...)
	if err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
	if got.MediaType != want.MediaType || got.Size != want.Size || got.Digest != want.Digest {
		again, err := b.walking.Compare(b.ctx, lower, upper, opts...) // for the listing
		if err != nil {
			b.t.Fatal(err)
		}
		b.t.Fatalf("%s: got %+v, want %+v as from containerd's differ; the entries are\n%s\nand should be\n%s", what,
			got, want, b.listing(got), b.listing(again))
	}
	info, err := b.differ.store.Info(b.ctx, got.Digest)
	if err != nil {
		b.t.Fatal(err)
	}
	if fmt.Sprint(info.Labels) != fmt.Sprint(wantInfo.Labels) {
		b.t.Errorf("%s: labels %v, want %v", what, info.Labels, wantInfo.Labels)
	}
	b.remove(got)
}

// remove removes a layer from the store, so that it has to be written again.
func (b *bench) remove(desc ocispec.Descriptor) {
	b.t.Helper()
	if err := b.differ.store.Delete(b.ctx, desc.Digest); err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.db.GarbageCollect(b.ctx); err != nil { // deletes the blob itself
		b.t.Fatal(err)
	}
}

// listing returns the entries of a layer as text.
func (b *bench) listing(desc ocispec.Descriptor) string {
	b.t.Helper()
	blob, err := content.ReadBlob(b.ctx, b.differ.store, desc)
	if err != nil {
		b.t.Fatal(err)
	}
	var r io.Reader = strings.NewReader(string(blob))
	if desc.MediaType == ocispec.MediaTypeImageLayerGzip {
		if r, err = gzip.NewReader(r); err != nil {
			b.t.Fatal(err)
		}
	}
	var lines []string
	for entries := tar.NewReader(r); ; {
		h, err := entries.Next()
		if err != nil {
			return strings.Join(append(lines, err.Error()), "\n")
		}
		bytes, _ := io.ReadAll(entries)
		lines = append(lines, fmt.Sprintf("%c %o %d:%d %d %s %q -> %q %v %s", h.Typeflag, h.Mode, h.Uid, h.Gid, h.Size,
			h.ModTime, h.Name, h.Linkname, h.PAXRecords, digest.FromBytes(bytes).Encoded()[:8]))
	}
}
