//go:build e2e

package differ

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// A layer has the same bytes as from containerd's own differ: for each kind of change, while the
// snapshot is active and when it is committed, on one lower directory and on several.
func TestSameLayer(t *testing.T) {
	b := newBench(t)
	one, two := b.dir("1"), b.dir("2")
	script{t, one}.base()
	b.mounted(b.active("2", one), func(root string) {
		s := script{t, root}
		s.remove("var/log")
		s.write("etc/conf.d/two", "second layer\n")
		s.remove("usr/lib/a/b")
		s.mkdir("usr/lib/a/b")
		s.write("usr/lib/a/b/deep", "second layer\n")
		s.touch("usr/lib/a/b/deep", old, 0)
	})
	n := 10
	for what, change := range kinds {
		for _, lower := range [][]string{{one}, {two, one}} {
			id := fmt.Sprint(n)
			n++
			upper := b.active(id, lower...)
			b.mounted(upper, func(root string) { change(script{t, root}) })
			b.compare(what, b.view(lower...), upper)
			b.compare(what+", committed", b.view(lower...), b.view(append([]string{b.dir(id)}, lower...)...))
			committed := append([]string{b.dir(id)}, lower...)
			again := b.active(id+"0", committed...)
			b.mounted(again, func(root string) { script{t, root}.write("tmp/more", "more") })
			b.compare(what+", below", b.view(committed...), again)
		}
	}
}

// The options of a request have the same effect as on containerd's own differ.
func TestSameOptions(t *testing.T) {
	b := newBench(t)
	one := b.dir("1")
	script{t, one}.base()
	upper := b.active("2", one)
	b.mounted(upper, func(root string) {
		s := script{t, root}
		s.write("etc/hosts", strings.Repeat("compressible ", 100_000))
		s.write("old", "x")
		s.touch("old", old, 0)
		s.remove("etc/passwd")
	})
	epoch := time.Unix(old+100, 0)
	for what, opts := range map[string][]diff.Opt{
		"gzip":         {diff.WithMediaType(ocispec.MediaTypeImageLayerGzip)},
		"uncompressed": {diff.WithMediaType(ocispec.MediaTypeImageLayer)},
		"zstd":         {diff.WithMediaType(ocispec.MediaTypeImageLayerZstd)},
		"labels":       {diff.WithLabels(map[string]string{"a": "b"})},
		"epoch":        {diff.WithSourceDateEpoch(&epoch)},
		"reference":    {diff.WithReference("mine")},
	} {
		b.compare(what, b.view(one), upper, opts...)
	}
}

// Random changes, one after the other, give the same bytes as from containerd's own differ.
func TestSameLayerOfRandomChanges(t *testing.T) {
	b := newBench(t)
	one := b.dir("1")
	script{t, one}.base()
	script{t, one}.remove("tmp/fifo") // a writer of a FIFO would wait for a reader
	const seeds, steps = 40, 25
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 0))
		upper := b.active(fmt.Sprint(10+seed), one)
		b.mounted(upper, func(root string) {
			for range steps {
				randomChange(r, script{t, root})
			}
		})
		b.compare(fmt.Sprint("seed ", seed), b.view(one), upper)
	}
}

// randomChange makes a change that may not be possible. Then it changes nothing.
func randomChange(r *rand.Rand, s script) {
	var paths []string
	s.must(filepath.WalkDir(s.root, func(path string, _ os.DirEntry, err error) error {
		if rest, _ := filepath.Rel(s.root, path); rest != "." {
			paths = append(paths, rest)
		}
		return err
	}))
	if len(paths) == 0 {
		return
	}
	slices.Sort(paths)
	path, other := s.at(paths[r.IntN(len(paths))]), s.at(paths[r.IntN(len(paths))])
	var below []string // directories in path
	for _, p := range paths {
		if info, err := os.Lstat(s.at(p)); err == nil && info.IsDir() && strings.HasPrefix(s.at(p), path+"/") {
			below = append(below, s.at(p))
		}
	}
	fresh := filepath.Join(filepath.Dir(other), fmt.Sprint("new", r.IntN(5)))
	times := []unix.Timespec{{Sec: old + int64(r.IntN(2)), Nsec: int64(r.IntN(2))}, {Sec: old + int64(r.IntN(2))}}
	switch r.IntN(13) {
	case 0:
		_ = os.WriteFile(path, []byte(fmt.Sprint(r.IntN(100))), 0o644)
	case 1:
		_ = os.WriteFile(fresh, []byte(fmt.Sprint(r.IntN(100))), 0o644)
	case 2:
		_ = os.RemoveAll(path)
	case 3:
		_ = os.Mkdir(fresh, 0o755)
	case 4:
		_ = os.RemoveAll(path)
		_ = os.Mkdir(path, 0o755)
		if len(below) > 0 {
			_ = os.MkdirAll(below[r.IntN(len(below))], 0o755)
		}
	case 5:
		_ = os.Link(path, fresh)
	case 6:
		_ = os.Symlink(filepath.Base(other), fresh)
	case 7:
		_ = os.Rename(path, fresh)
	case 8:
		_ = os.Rename(path, other)
	case 9:
		_ = unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW)
	case 10:
		_ = syscall.Chmod(path, uint32(0o600|r.IntN(0o200)))
	case 11:
		_ = os.Lchown(path, r.IntN(3), r.IntN(3))
	case 12:
		_ = os.RemoveAll(path)
		_ = os.WriteFile(path, []byte(fmt.Sprint(r.IntN(100))), 0o644)
	}
}

// Directories with marks that only overlayfs can follow are refused, and nothing stays in
// containerd.
func TestMarksAreRefused(t *testing.T) {
	for what, mark := range map[string]struct{ path, name, value string }{
		"a renamed directory":      {"d", "trusted.overlay.redirect", "/usr"},
		"a file without contents":  {"d/f", "trusted.overlay.metacopy", ""},
		"whiteouts of other kinds": {"d", "trusted.overlay.opaque", "x"},
		"such a whiteout":          {"d/f", "trusted.overlay.whiteout", "y"},
		"an opaque root":           {".", "trusted.overlay.opaque", "y"},
	} {
		b := newBench(t)
		one := b.dir("1")
		upper := b.active("2", one)
		s := script{t, b.dir("2")}
		s.mkdir("d")
		s.write("d/f", "f")
		s.xattr(mark.path, mark.name, mark.value)
		if got, err := b.differ.Compare(b.ctx, b.view(one), upper); !errdefs.IsNotImplemented(err) {
			t.Errorf("%s: got %+v, %v; want that it is not implemented", what, got, err)
		}
		b.keepsNothing(what)
	}
}

// keepsNothing checks that containerd has no lease, blob or unfinished upload.
func (b *bench) keepsNothing(what string) {
	b.t.Helper()
	held, err := b.differ.leases.List(b.ctx)
	if err != nil || len(held) > 0 {
		b.t.Errorf("%s: leases %v (%v), want none", what, held, err)
	}
	uploads, err := b.differ.store.ListStatuses(b.ctx)
	if err != nil || len(uploads) > 0 {
		b.t.Errorf("%s: uploads %v (%v), want none", what, uploads, err)
	}
	if err := b.differ.store.Walk(b.ctx, func(info content.Info) error {
		b.t.Errorf("%s: blob %s, want none", what, info.Digest)
		return nil
	}); err != nil {
		b.t.Error(err)
	}
}

// A layer that cannot be written leaves nothing in containerd, and no mount.
func TestFailedLayerLeavesNothing(t *testing.T) {
	b := newBench(t)
	one := b.dir("1")
	script{t, one}.base()
	upper := b.active("2", one)
	script{t, b.dir("2")}.write("new", "x")
	ctx, cancel := context.WithCancel(b.ctx)
	b.differ.store = cancelling{b.differ.store, cancel}
	if got, err := b.differ.Compare(ctx, b.view(one), upper); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that is cancelled: got %+v, %v; want that it was cancelled", got, err)
	}
	b.keepsNothing("after a cancelled request")
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), "lighter-diff-") {
		t.Errorf("the mounts are %s (%v); want none of the test's", mounts, err)
	}
}

// cancelling is a store that cancels a request when it begins to write.
type cancelling struct {
	content.Store
	cancel context.CancelFunc
}

func (c cancelling) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	defer c.cancel()
	return c.Store.Writer(ctx, opts...)
}

// A layer stays in containerd without a lease of the client, also if containerd had it already. A
// layer under a client's lease stays as long as that lease.
func TestLayerIsLeased(t *testing.T) {
	b := newBench(t)
	one := b.dir("1")
	script{t, one}.base()
	upper := b.active("2", one)
	script{t, b.dir("2")}.write("new", "x")
	exists := func(desc ocispec.Descriptor) bool {
		t.Helper()
		if _, err := b.db.GarbageCollect(b.ctx); err != nil {
			t.Fatal(err)
		}
		_, err := b.differ.store.Info(b.ctx, desc.Digest)
		return err == nil
	}
	desc, err := b.walking.Compare(b.ctx, b.view(one), upper)
	if err != nil {
		t.Fatal(err)
	}
	for _, had := range []bool{true, false} {
		if desc, err = b.differ.Compare(b.ctx, b.view(one), upper); err != nil {
			t.Fatal(err)
		}
		if !exists(desc) {
			t.Errorf("the layer is not kept (containerd had it before: %v), want that a lease keeps it", had)
		}
		held, err := b.differ.leases.List(b.ctx)
		if err != nil || len(held) != 1 || held[0].Labels["containerd.io/gc.expire"] == "" {
			t.Fatalf("leases %v (%v), want one that ends", held, err)
		}
		if err := b.differ.leases.Delete(b.ctx, held[0]); err != nil {
			t.Fatal(err)
		}
		if exists(desc) {
			t.Error("the layer is kept without a lease, want that it is deleted")
		}
	}
	lease, err := b.differ.leases.Create(b.ctx, leases.WithRandomID())
	if err != nil {
		t.Fatal(err)
	}
	if desc, err = b.differ.Compare(leases.WithLease(b.ctx, lease.ID), b.view(one), upper); err != nil {
		t.Fatal(err)
	}
	if held, err := b.differ.leases.List(b.ctx); err != nil || len(held) != 1 || !exists(desc) {
		t.Errorf("leases %v (%v), want the client's alone, and that it keeps the layer", held, err)
	}
}
