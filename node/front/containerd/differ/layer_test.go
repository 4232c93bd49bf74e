//go:build e2e

package differ

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/diff/walking"
	"github.com/containerd/errdefs"
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

// A script changes files below root. Its methods fail the test.
type script struct {
	t    *testing.T
	root string
}

func (s script) at(path string) string { return filepath.Join(s.root, path) }

func (s script) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s script) write(path, text string)  { s.must(os.WriteFile(s.at(path), []byte(text), 0o644)) }
func (s script) mkdir(path string)        { s.must(os.Mkdir(s.at(path), 0o755)) }
func (s script) remove(path string)       { s.must(os.RemoveAll(s.at(path))) }
func (s script) symlink(to, path string)  { s.must(os.Symlink(to, s.at(path))) }
func (s script) link(old, path string)    { s.must(os.Link(s.at(old), s.at(path))) }
func (s script) rename(old, path string)  { s.must(os.Rename(s.at(old), s.at(path))) }
func (s script) chmod(path string, m int) { s.must(syscall.Chmod(s.at(path), uint32(m))) }
func (s script) chown(path string, id int) {
	s.must(os.Lchown(s.at(path), id, id))
}

func (s script) mknod(path string, mode uint32, major, minor uint32) {
	s.must(unix.Mknod(s.at(path), mode|0o644, int(unix.Mkdev(major, minor))))
}

func (s script) xattr(path, name, value string) {
	s.must(unix.Lsetxattr(s.at(path), name, []byte(value), 0))
}

// touch sets the time of a file or link.
func (s script) touch(path string, sec, nsec int64) {
	times := []unix.Timespec{{Sec: sec, Nsec: nsec}, {Sec: sec, Nsec: nsec}}
	s.must(unix.UtimesNanoAt(unix.AT_FDCWD, s.at(path), times, unix.AT_SYMLINK_NOFOLLOW))
}

// old is the time of the files in the base, in whole seconds, as in most layers.
const old = 1_500_000_000

// capabilities is a value of the xattr security.capability.
const capabilities = "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// base fills a directory with files of all kinds.
func (s script) base() {
	for _, dir := range []string{"etc", "etc/conf.d", "usr", "usr/bin", "usr/lib", "usr/lib/a", "usr/lib/a/b", "var",
		"var/empty", "tmp", "a"} {
		s.mkdir(dir)
	}
	for _, file := range []string{"etc/passwd", "etc/hosts", "etc/conf.d/one", "etc/conf.d/two", "usr/bin/tool",
		"usr/lib/a/b/deep", "usr/lib/a/file", "var/log", "a/x", "a.b", "a-b"} {
		s.write(file, "contents of "+file+"\n")
	}
	s.write("etc/empty", "")
	s.link("usr/bin/tool", "usr/bin/same")
	s.link("usr/bin/tool", "usr/lib/third")
	s.symlink("passwd", "etc/link")
	s.symlink("nowhere", "etc/dangling")
	s.symlink("usr/bin", "bin")
	s.mknod("tmp/fifo", unix.S_IFIFO, 0, 0)
	s.mknod("tmp/null", unix.S_IFCHR, 1, 3)
	s.write("usr/bin/ping", "ping")
	s.xattr("usr/bin/ping", "security.capability", capabilities)
	s.chown("var/log", 33)
	s.must(filepath.WalkDir(s.root, func(path string, _ os.DirEntry, err error) error {
		if err == nil && path != s.root {
			rest, _ := filepath.Rel(s.root, path)
			s.touch(rest, old, 0)
		}
		return err
	}))
}

// kinds are changes by containers.
var kinds = map[string]func(s script){
	"nothing":         func(script) {},
	"a new file":      func(s script) { s.write("etc/new", "new") },
	"a changed file":  func(s script) { s.write("etc/hosts", "changed") },
	"a longer file":   func(s script) { s.write("etc/hosts", strings.Repeat("x", 1<<20)) },
	"an emptied file": func(s script) { s.must(os.Truncate(s.at("etc/hosts"), 0)) },
	"the same contents": func(s script) {
		s.write("etc/hosts", "contents of etc/hosts\n")
		s.touch("etc/hosts", old, 0)
	},
	"contents, same time": func(s script) {
		s.write("etc/hosts", "contents of etc/HOSTS\n")
		s.touch("etc/hosts", old, 0)
	},
	"a fraction of a second": func(s script) {
		s.write("etc/hosts", "contents of etc/HOSTS\n")
		s.touch("etc/hosts", old, 1)
	},
	"the same empty file": func(s script) {
		s.chmod("etc/empty", 0o600)
		s.chmod("etc/empty", 0o644)
	},
	"touched":     func(s script) { s.touch("etc/hosts", old+1, 500); s.touch("etc/conf.d", old+1, 0) },
	"before 1970": func(s script) { s.write("etc/new", "x"); s.touch("etc/new", -1, 999_999_999) },
	"modes": func(s script) {
		s.chmod("etc/hosts", 0o4755)
		s.chmod("usr/lib", 0o1777)
		s.chmod("etc", 0o700)
	},
	"owners": func(s script) {
		s.chown("etc/hosts", 1000)
		s.chown("etc/link", 3_000_000)
		s.chown("usr/lib/a", 5)
	},
	"a deleted file":      func(s script) { s.remove("etc/hosts") },
	"a deleted directory": func(s script) { s.remove("usr/lib") },
	"deleted links": func(s script) {
		s.remove("etc/link")
		s.remove("etc/dangling")
		s.remove("bin")
	},
	"a deleted name": func(s script) { s.remove("usr/bin/same") },
	"all deleted": func(s script) {
		s.remove("etc")
		s.remove("usr")
		s.remove("a")
		s.remove("a.b")
		s.remove("a-b")
	},
	"an emptied directory": func(s script) {
		s.remove("etc/conf.d/one")
		s.remove("etc/conf.d/two")
	},
	"new and deleted again": func(s script) {
		s.write("etc/new", "x")
		s.remove("etc/new")
		s.mkdir("d")
		s.remove("d")
	},
	"a directory instead": func(s script) {
		s.remove("etc/hosts")
		s.mkdir("etc/hosts")
		s.write("etc/hosts/x", "x")
	},
	"a file instead": func(s script) { s.remove("usr/lib"); s.write("usr/lib", "file") },
	"a link instead of a file": func(s script) {
		s.remove("etc/hosts")
		s.symlink("passwd", "etc/hosts")
	},
	"a link instead of a dir": func(s script) { s.remove("usr/lib"); s.symlink("bin", "usr/lib") },
	"a directory for a link": func(s script) {
		s.remove("bin")
		s.mkdir("bin")
		s.write("bin/tool", "tool")
	},
	"another link": func(s script) {
		s.remove("etc/link")
		s.symlink("hosts!", "etc/link")
		s.touch("etc/link", old, 0)
	},
	"the same link": func(s script) {
		s.remove("etc/link")
		s.symlink("passwd", "etc/link")
		s.touch("etc/link", old, 0)
	},
	"a replaced directory": func(s script) {
		s.remove("etc/conf.d")
		s.mkdir("etc/conf.d")
		s.write("etc/conf.d/three", "3")
	},
	"a replaced empty one": func(s script) { s.remove("var/empty"); s.mkdir("var/empty") },
	"the same directory": func(s script) {
		s.remove("usr/lib/a")
		s.mkdir("usr/lib/a")
		s.touch("usr/lib/a", old, 0)
	},
	"a replaced tree": func(s script) {
		s.remove("usr")
		s.mkdir("usr")
		s.mkdir("usr/lib")
		s.write("usr/lib/a", "file")
	},
	"a replaced tree, partly": func(s script) {
		s.remove("usr")
		s.mkdir("usr")
		s.mkdir("usr/bin")
		s.write("usr/bin/tool", "t")
	},
	"a tree that came back": func(s script) {
		s.remove("a")
		s.mkdir("a")
		s.write("a/x", "contents of a/x\n")
		s.touch("a/x", old, 0)
	},
	"new directories": func(s script) {
		s.must(os.MkdirAll(s.at("new/very/deep"), 0o700))
		s.write("new/very/deep/file", "x")
	},
	"a deep file": func(s script) { s.write("usr/lib/a/b/new", "x") },
	"a new name":  func(s script) { s.link("etc/hosts", "etc/hosts2") },
	"a new name before": func(s script) {
		s.link("etc/passwd", "aaa")
		s.link("etc/passwd", "zzz")
	},
	"a new name of three":  func(s script) { s.link("usr/bin/tool", "usr/fourth") },
	"one of three changed": func(s script) { s.write("usr/bin/tool", "changed") },
	"new names of a new file": func(s script) {
		s.write("n", "n")
		s.link("n", "etc/n")
		s.link("n", "usr/n")
		s.link("n", "a/n")
	},
	"a new name, then changed": func(s script) {
		s.link("etc/hosts", "etc/hosts2")
		s.write("etc/hosts2", "both")
	},
	"a name of a link":    func(s script) { s.link("etc/link", "etc/link2") },
	"a name of a FIFO":    func(s script) { s.link("tmp/fifo", "tmp/fifo2") },
	"a renamed file":      func(s script) { s.rename("etc/hosts", "etc/renamed") },
	"a file renamed over": func(s script) { s.rename("etc/hosts", "etc/passwd") },
	"a renamed new directory": func(s script) {
		s.mkdir("d")
		s.write("d/x", "x")
		s.rename("d", "usr/lib/d")
	},
	"a directory renamed over": func(s script) {
		s.mkdir("d")
		s.write("d/x", "x")
		s.must(unix.Rename(s.at("d"), s.at("var/empty")))
	},
	"names in order": func(s script) {
		s.write("a/y", "1")
		s.write("a.b", "2")
		s.write("a-b", "3")
		s.write("a0", "4")
	},
	"names out of order": func(s script) {
		s.remove("a")
		s.write("a!", "1")
		s.remove("a-b")
		s.write("a.c", "4")
	},
	"names like whiteouts": func(s script) {
		s.write("etc/.wh.x", "x")
		s.mkdir("etc/.wh..wh..opq")
	},
	"a long name": func(s script) {
		s.write("etc/"+strings.Repeat("long", 60), "x")
		s.write("etc/ü\nn", "x")
	},
	"a FIFO and devices": func(s script) {
		s.mknod("p", unix.S_IFIFO, 0, 0)
		s.mknod("b", unix.S_IFBLK, 7, 300)
	},
	"a device like a whiteout": func(s script) {
		s.mknod("c", unix.S_IFCHR, 0, 1)
		s.mknod("z", unix.S_IFCHR, 5, 0)
	},
	"another device": func(s script) {
		s.remove("tmp/null")
		s.mknod("tmp/null", unix.S_IFCHR, 1, 5)
		s.touch("tmp/null", old, 0)
	},
	"capabilities": func(s script) { s.xattr("etc/hosts", "security.capability", capabilities) },
	"no capabilities": func(s script) {
		s.must(unix.Lremovexattr(s.at("usr/bin/ping"), "security.capability"))
	},
	"capabilities as before": func(s script) {
		s.chmod("usr/bin/ping", 0o600)
		s.chmod("usr/bin/ping", 0o644)
		s.xattr("usr/bin/ping", "security.capability", capabilities)
	},
	"xattrs": func(s script) {
		s.xattr("etc/hosts", "user.x", "y")
		s.xattr("etc", "trusted.x", "y")
	},
	"a file with holes": func(s script) {
		s.write("sparse", "")
		s.must(os.Truncate(s.at("sparse"), 3<<20))
	},
	"only a directory's time": func(s script) { s.touch("usr/lib/a", old+5, 0) },
	"all of a directory's same": func(s script) {
		s.write("etc/new", "x")
		s.remove("etc/new")
		s.touch("etc", old, 0)
	},
}

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
