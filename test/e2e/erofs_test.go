//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goerofs "github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"

	"lighter/format/erofs"
	"lighter/format/tree"
)

// Package erofs, fsck.erofs, the kernel and go-erofs accept each image. The kernel and go-erofs
// show the tree from which the image was made.
func TestErofsImages(t *testing.T) {
	for name, c := range map[string]*erofsCase{"odd": erofsOdd(), "giant": erofsGiant(), "wide": erofsWide(),
		"deep": erofsDeep(), "empty": {root: erofsDir()}} {
		t.Run(name, func(t *testing.T) {
			meta, data := c.write(t)
			t.Run("check", func(t *testing.T) { erofsCheck(t, meta) })
			t.Run("fsck", func(t *testing.T) { erofsFsck(t, meta, data) })
			t.Run("kernel", func(t *testing.T) { c.compareMounted(t, erofsMount(t, meta, data)) })
			t.Run("go-erofs", func(t *testing.T) { c.compareGoErofs(t, meta, data) })
		})
	}
}

// write writes the metadata image and the device to files.
func (c *erofsCase) write(t *testing.T) (meta, data string) {
	t.Helper()
	var size uint64
	places := map[*tree.Node]uint64{}
	meta, data = filepath.Join(t.TempDir(), "meta"), filepath.Join(t.TempDir(), "data")
	device, err := os.Create(data)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	c.each(func(_ string, n *tree.Node) {
		if _, known := places[n]; known || len(n.Content.Extents) == 0 {
			return
		}
		places[n] = size
		for offset, b := range c.data[n] {
			if _, err := device.WriteAt([]byte(b), int64(size)+offset); err != nil {
				t.Fatal(err)
			}
		}
		size += (uint64(n.Size) + erofs.BlockSize - 1) / erofs.BlockSize * erofs.BlockSize
	})
	if err := device.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(meta)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := erofs.Write(f, &tree.Tree{Root: c.root}, size,
		func(n *tree.Node) uint64 { return places[n] }); err != nil {
		t.Fatal(err)
	}
	return meta, data
}

// erofsCheck checks a metadata image with Walk.
func erofsCheck(t *testing.T, meta string) {
	f, err := os.Open(meta)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	m, err := erofs.Open(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Walk(context.Background(), nil); err != nil {
		t.Error(err)
	}
}

// erofsFsck checks an image with fsck.erofs.
func erofsFsck(t testing.TB, meta, data string) {
	t.Helper()
	args := []string{"-d3", "--device=" + data, meta}
	if info, err := os.Stat(data); err != nil || info.Size() < 1<<30 {
		args = append(args, "--extract") // also reads every file
	}
	out, err := exec.Command("fsck.erofs", args...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "No errors found") {
		t.Errorf("fsck.erofs: %v\n%s", err, out)
	}
}

// erofsMount mounts an image until the test ends, and returns the mount point.
func erofsMount(t testing.TB, meta, data string) string {
	t.Helper()
	dir := scratch(t)
	if err := unix.Mount(meta, dir, "erofs", unix.MS_RDONLY, "device="+data); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// compareMounted compares the image that is mounted at dir with the case's tree.
func (c *erofsCase) compareMounted(t *testing.T, dir string) {
	inos := map[*tree.Node]uint64{}
	nodes := map[uint64]*tree.Node{}
	root, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	c.each(func(path string, n *tree.Node) {
		var st unix.Stat_t
		if err := unix.Fstatat(root, path, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			t.Errorf("stat %q: %v", path, err)
			return
		}
		if other := nodes[st.Ino]; other != nil && other != n || inos[n] != 0 && inos[n] != st.Ino {
			t.Errorf("%q: inode %d belongs to several nodes, or its node has several inodes", path, st.Ino)
		}
		nodes[st.Ino], inos[n] = n, st.Ino
		got := tree.Node{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Nlink: uint32(st.Nlink), Rdev: st.Rdev, Size: st.Size,
			Mtime: tree.Time{Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec)}}
		want := tree.Node{Mode: n.Mode, UID: n.UID, GID: n.GID, Nlink: n.Nlink, Rdev: n.Rdev, Size: n.Size,
			Mtime: n.Mtime}
		if n.IsDir() {
			want.Size = st.Size
		}
		if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
			t.Errorf("%q: the kernel shows %s, want %s", path, g, w)
		}
		c.compareContent(t, root, path, n)
	})
}

func (c *erofsCase) compareContent(t *testing.T, root int, path string, n *tree.Node) {
	at := fmt.Sprintf("/proc/self/fd/%d/%s", root, path)
	if got, want := erofsReadXattrs(t, at), xattrMap(n); !maps.Equal(got, want) {
		t.Errorf("%q: the kernel shows the xattrs %.200q, want %.200q", path, got, want)
	}
	switch n.Mode & tree.ModeType {
	case tree.ModeSymlink:
		if got, err := os.Readlink(at); err != nil || got != n.Link {
			t.Errorf("%q: got the target %q (%v), want %q", path, got, err, n.Link)
		}
	case tree.ModeDir:
		got, err := os.ReadDir(at)
		if err != nil || !slices.EqualFunc(got, n.Children(),
			func(a fs.DirEntry, b tree.Dirent) bool { return a.Name() == b.Name }) {
			t.Errorf("%q: got %d names (%v), want the %d of the tree", path, len(got), err, len(n.Children()))
		}
		for _, missing := range []string{"\x01\x01", "nothing", "\xff\xff"} {
			if _, err := os.Lstat(at + "/" + missing); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%q: look up the missing name %q: %v, want ENOENT", path, missing, err)
			}
		}
	case tree.ModeRegular:
		f, err := os.Open(at)
		if err != nil {
			t.Errorf("open %q: %v", path, err)
			return
		}
		defer f.Close()
		c.compareBytes(t, path, n, f)
	}
}

// compareBytes compares a file's content and its end with the case's file. Of a file beyond 1 GiB
// it compares only the data, and two pages of a hole.
func (c *erofsCase) compareBytes(t *testing.T, path string, n *tree.Node, r io.ReaderAt) {
	data := c.data[n]
	if len(n.Content.Extents) == 0 {
		data = map[int64]string{0: string(n.Content.Inline)}
	}
	if n.Size > 1<<30 {
		data = maps.Clone(data)
		data[1<<29] = strings.Repeat("\x00", 8192)
	} else {
		whole := make([]byte, n.Size)
		for offset, b := range data {
			copy(whole[offset:], b)
		}
		data = map[int64]string{0: string(whole)}
	}
	for offset, want := range data {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(io.NewSectionReader(r, offset, int64(len(want))), got); err != nil ||
			string(got) != want {
			t.Errorf("%q: the %d bytes at %d are not those of the case (%v)", path, len(want), offset, err)
		}
	}
	if k, err := r.ReadAt(make([]byte, 1), n.Size); k != 0 || err != io.EOF {
		t.Errorf("%q: read %d bytes at the end (%v), want 0 and EOF", path, k, err)
	}
}

func xattrMap(n *tree.Node) map[string]string {
	m := map[string]string{}
	for _, x := range n.Xattrs {
		m[x.Name] = string(x.Value)
	}
	return m
}

func erofsReadXattrs(t *testing.T, path string) map[string]string {
	m := map[string]string{}
	list, value := make([]byte, 1<<16), make([]byte, 1<<16)
	n, err := unix.Llistxattr(path, list)
	if err != nil {
		t.Errorf("list xattrs of %q: %v", path, err)
		return m
	}
	for _, name := range strings.Split(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			t.Errorf("get xattr %q of %q: %v", name, path, err)
			continue
		}
		m[name] = string(value[:n])
	}
	return m
}

// compareGoErofs compares the image, as go-erofs reads it, with the case's tree.
func (c *erofsCase) compareGoErofs(t *testing.T, meta, data string) {
	files := make([]*os.File, 2)
	for i, name := range []string{meta, data} {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	img, err := goerofs.Open(files[0], goerofs.WithExtraDevices(files[1]))
	if err != nil {
		t.Fatal(err)
	}
	c.each(func(path string, n *tree.Node) {
		info, err := img.(fs.ReadLinkFS).Lstat(path)
		if err != nil {
			t.Errorf("stat %q with go-erofs: %v", path, err)
			return
		}
		st := info.Sys().(*goerofs.Stat)
		got := tree.Node{UID: st.UID, GID: st.GID, Nlink: uint32(st.Nlink), Rdev: uint64(st.Rdev), Size: st.Size,
			Mtime: tree.Time{Sec: int64(st.Mtime), Nsec: st.MtimeNs}}
		want := tree.Node{UID: n.UID, GID: n.GID, Nlink: n.Nlink, Rdev: n.Rdev, Size: n.Size, Mtime: n.Mtime}
		if n.IsDir() {
			want.Size = st.Size
		}
		if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
			t.Errorf("%q: go-erofs shows %s, want %s", path, g, w)
		}
		if got, want := goErofsXattrs(st), xattrMap(n); !maps.Equal(got, want) {
			t.Errorf("%q: go-erofs shows the xattrs %.200q, want %.200q", path, got, want)
		}
		c.compareGoErofsContent(t, img, path, n)
	})
}

// goErofsXattrs returns the extended attributes that go-erofs has read. It removes the dot that
// go-erofs 0.3.1 appends to the names of the two ACLs.
func goErofsXattrs(st *goerofs.Stat) map[string]string {
	m := map[string]string{}
	for name, value := range st.Xattrs {
		if strings.HasPrefix(name, "system.posix_acl_") {
			name = strings.TrimSuffix(name, ".")
		}
		m[name] = value
	}
	return m
}

func (c *erofsCase) compareGoErofsContent(t *testing.T, img fs.FS, path string, n *tree.Node) {
	switch n.Mode & tree.ModeType {
	case tree.ModeSymlink:
		if got, err := img.(fs.ReadLinkFS).ReadLink(path); err != nil || got != n.Link {
			t.Errorf("%q: go-erofs shows the target %q (%v), want %q", path, got, err, n.Link)
		}
	case tree.ModeDir:
		got, err := img.(fs.ReadDirFS).ReadDir(path)
		if err != nil || !slices.EqualFunc(got, n.Children(),
			func(a fs.DirEntry, b tree.Dirent) bool { return a.Name() == b.Name }) {
			t.Errorf("%q: go-erofs shows %d names (%v), want the %d there are", path, len(got), err, len(n.Children()))
		}
	case tree.ModeRegular:
		if n.Size > 8<<20 {
			return // go-erofs would read the whole file: it can read only from the start
		}
		b, err := fs.ReadFile(img, path)
		if err != nil {
			t.Errorf("read %q with go-erofs: %v", path, err)
			return
		}
		c.compareBytes(t, path, n, bytes.NewReader(b))
	}
}

// EROFS shows the same device numbers as another file system after mknod(2). mknod keeps 12 bits of
// the major number and 20 bits of the minor number.
func TestErofsDeviceNumbers(t *testing.T) {
	c := &erofsCase{}
	var children []any
	dir := t.TempDir()
	for i, rdev := range []uint64{unix.Mkdev(1, 3), unix.Mkdev(8, 255), unix.Mkdev(8, 256), unix.Mkdev(259, 70000),
		unix.Mkdev(4095, 1<<20-1), unix.Mkdev(4096, 1<<20), unix.Mkdev(1<<31, 1<<31), unix.Mkdev(1<<32-1, 1<<32-1)} {
		name := fmt.Sprint(i)
		if err := unix.Mknod(filepath.Join(dir, name), unix.S_IFCHR|0o600, int(rdev)); err != nil {
			t.Fatal(err)
		}
		children = append(children, name, erofsNode(tree.ModeChar|0o600, rdev, ""))
	}
	c.root = erofsDir(children...)
	meta, data := c.write(t)
	mounted := erofsMount(t, meta, data)
	for i := range len(children) / 2 {
		var want, got unix.Stat_t
		if err := errors.Join(unix.Stat(filepath.Join(dir, fmt.Sprint(i)), &want),
			unix.Stat(filepath.Join(mounted, fmt.Sprint(i)), &got)); err != nil {
			t.Fatal(err)
		}
		if got.Rdev != want.Rdev {
			t.Errorf("device %#x: got %#x, want %#x as after mknod", children[2*i+1].(*tree.Node).Rdev, got.Rdev,
				want.Rdev)
		}
	}
}
