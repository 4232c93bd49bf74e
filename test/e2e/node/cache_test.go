//go:build e2e

package node

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"lighter/node/imagecache"
	"lighter/test/testkit/faultfs"
	"lighter/test/testkit/site"
)

// cache runs a cache command and decodes its JSON output.
func cache[T any](t *testing.T, d *daemon, args ...string) (answer T) {
	t.Helper()
	out := run(t, append(append([]string{"cache"}, args...), "--root", d.root, "--json")...)
	if out.code != 0 {
		t.Fatalf("%s: %s", out.line, out.stderr)
	}
	if err := json.Unmarshal([]byte(out.stdout), &answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

// The cache commands (pin, unpin, evict, prune, scrub) accept each name of an image.
func TestCacheCommands(t *testing.T) {
	d := startNode(t, newRoot(t), "--address", "")
	dir, both := t.TempDir(), t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	run(t, "mount", "--root", d.root, "--platform", "linux/arm64", "both:1", both).good()
	tools := status(t, d.root).Binds[0]
	if tools.Name != "tools:1" {
		tools = status(t, d.root).Binds[1]
	}
	run(t, "cache", "pin", "--root", d.root, "nothing:1").bad(1, "nothing:1", "tools:1", "both:1")
	run(t, "cache", "pin", "--root", d.root).bad(2, "IMAGE")
	run(t, "cache", "unpin", "--root", d.root, "tools:1").bad(1, "not pinned", "none")

	pinned := cache[imagecache.Status](t, d, "pin", "tools:1")
	if len(pinned.Pins) != 1 || pinned.Pins[0].Label != "tools:1" || pinned.Pins[0].Bytes < int64(len(large)) ||
		pinned.Pins[0].Cached > 0 {
		t.Errorf("pins: %+v", pinned.Pins)
	}
	pinned = cache[imagecache.Status](t, d, "pin", "--fetch", tools.Chain)
	if len(pinned.Pins) != 1 || pinned.Pins[0].Cached != pinned.Pins[0].Bytes {
		t.Errorf("fetched: %+v", pinned.Pins)
	}
	id := pinned.Pins[0].ID
	if fetched := status(t, d.root).Fetched; fetched.Bytes < int64(len(large)) {
		t.Errorf("fetched %+v", fetched)
	}
	pruned := cache[imagecache.Freed](t, d, "prune")
	if pruned.Pins[0].Cached != pruned.Pins[0].Bytes {
		t.Errorf("pruned %+v", pruned)
	}
	d.end(syscall.SIGKILL)
	d.start()
	if pins := cache[imagecache.Status](t, d).Pins; len(pins) != 1 || pins[0] != pinned.Pins[0] {
		t.Errorf("after a restart: %+v", pins)
	}
	text := run(t, "cache", "--root", d.root).good()
	for _, word := range []string{"pinned", "tools:1", id.Short()} {
		if !strings.Contains(text, word) {
			t.Errorf("the output of cache does not contain %q: %s", word, text)
		}
	}
	// The first 12 digits of the ID name an image, the last 12 do not.
	run(t, "cache", "unpin", "--root", d.root, id.String()[52:]).bad(1, "tools:1")
	if left := cache[imagecache.Status](t, d, "unpin", id.Short()); len(left.Pins) > 0 {
		t.Errorf("unpinned: %+v", left.Pins)
	}
	// The other image also has the large file, so evicting this one frees almost nothing.
	if freed := cache[imagecache.Freed](t, d, "evict", id.String()); freed.Freed.Chunks > 3 ||
		freed.Used < int64(len(large)) {
		t.Errorf("freed %+v", freed)
	}
	run(t, "unmount", "--root", d.root, both).good()
	if freed := cache[imagecache.Freed](t, d, "evict", "tools:1"); freed.Freed.Bytes < int64(len(large)) {
		t.Errorf("freed %+v", freed)
	}
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	shows(t, dir)
	scrubbed := cache[imagecache.Scrubbed](t, d, "scrub")
	if scrubbed.Found.Bytes < int64(len(large)) || scrubbed.Found.Damaged > 0 {
		t.Errorf("scrubbed %+v", scrubbed)
	}
	segments, _ := filepath.Glob(filepath.Join(d.root, "cache/*.segment"))
	for _, segment := range segments {
		flipEvery(t, segment, 64<<10)
	}
	if scrubbed := cache[imagecache.Scrubbed](t, d, "scrub"); scrubbed.Found.Damaged == 0 ||
		scrubbed.Damaged != scrubbed.Found.Damaged {
		t.Errorf("scrubbed %+v", scrubbed)
	}
	shows(t, dir)
	for _, out := range []string{run(t, "cache", "prune", "--root", d.root).good(),
		run(t, "cache", "scrub", "--root", d.root).good()} {
		if !strings.Contains(out, "freed") && !strings.Contains(out, "verified") {
			t.Errorf("printed %q", out)
		}
	}
	run(t, "unmount", "--root", d.root, dir).good()
}

// flipEvery flips a bit of a file every few bytes.
func flipEvery(t *testing.T, path string, every int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	for at := min(every, info.Size()) / 2; at < info.Size(); at += every {
		var b [1]byte
		if _, err := f.ReadAt(b[:], at); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 16
		if _, err := f.WriteAt(b[:], at); err != nil {
			t.Fatal(err)
		}
	}
}

// The disk of the cache fails in several ways while a tree is mounted. Readers of the tree see no
// error. The status shows flipped bits, cut files and a full disk.
func TestDiskFailsUnderAMount(t *testing.T) {
	d := &daemon{t: t, root: newRoot(t)}
	disk := filepath.Join(d.root, "cache")
	if err := os.MkdirAll(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "ext4")
	script := "truncate -s 24M $1 && mkfs.ext4 -q -F -m 0 $1 && mount -o loop,errors=remount-ro $1 $2"
	if out, err := exec.Command("sh", "-ec", script, "sh", image, disk).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	d = startNode(t, d.root, "--address", "", "--cache-size", "64MiB", "--disk-free-low", "0")
	dir := t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	check := func(what string, shown bool) {
		t.Helper()
		if !shown {
			t.Errorf("the status does not show %s: %+v", what, status(t, d.root).Cache)
		}
	}
	reread := func() imagecache.Status {
		t.Helper()
		if err := site.DropCaches(); err != nil {
			t.Fatal(err)
		}
		shows(t, dir)
		return cache[imagecache.Status](t, d)
	}
	s := reread()
	check("what was read", s.Used > int64(len(large)))

	segments, _ := filepath.Glob(filepath.Join(disk, "*.segment"))
	for _, segment := range segments {
		flipEvery(t, segment, 300_000)
	}
	s = reread()
	check("flipped bits", s.Damaged > 0)

	for _, segment := range segments {
		if err := os.Truncate(segment, 1<<20); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	cut := reread()
	check("cut files", cut.Damaged > s.Damaged)

	cache[imagecache.Freed](t, d, "prune")
	out, _ := exec.Command("dd", "if=/dev/zero", "of="+filepath.Join(disk, "full"), "bs=64k").CombinedOutput()
	if !strings.Contains(string(out), "No space left") {
		t.Fatalf("the disk is not full: %s", out)
	}
	s = reread()
	check("a full disk", s.Failed > 0)
	if err := os.Remove(filepath.Join(disk, "full")); err != nil {
		t.Fatal(err)
	}

	device, err := exec.Command("findmnt", "-no", "SOURCE", disk).Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/sys/fs/ext4/"+filepath.Base(strings.TrimSpace(string(device)))+"/trigger_fs_error",
		[]byte("a test"), 0o200); err != nil {
		t.Fatal(err)
	}
	s = reread()
	reread()

	f, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	how := uint32(2)                                                // EXT4_GOING_FLAGS_NOLOGFLUSH
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), 0x8004587d, /* EXT4_IOC_SHUTDOWN */
		uintptr(unsafe.Pointer(&how)))
	f.Close()
	if errno != 0 {
		t.Fatal(errno)
	}
	reread()

	// The disk disappears under the node.
	if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	reread()
	run(t, "unmount", "--root", d.root, dir).good()
}

// The disk of the cache fails reads, like a disk with bad sectors. Later the cache cannot be
// opened.
func TestBadSectors(t *testing.T) {
	root := newRoot(t)
	dir, disk := t.TempDir(), filepath.Join(root, "cache")
	if err := os.MkdirAll(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	faulty, err := faultfs.Mount(t.TempDir(), disk)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = faulty.Close(disk) })
	d := startNode(t, root, "--address", "", "--cache-size", "64MiB")
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	shows(t, dir)
	for range 2 {
		faulty.Fail(unix.EIO, faultfs.Read)
		if err := site.DropCaches(); err != nil {
			t.Fatal(err)
		}
		shows(t, dir)
		faulty.Fail(0, faultfs.Read)
	}
	if s := cache[imagecache.Status](t, d); s.Unread == 0 || s.Damaged > 0 {
		t.Errorf("the status does not show the failure: %+v", s)
	}
	faulty.Fail(unix.EROFS, faultfs.Open)
	d.end(syscall.SIGTERM)
	d.start()
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	shows(t, dir)
	if s := cache[imagecache.Status](t, d); !strings.Contains(s.Absent, "read-only") {
		t.Errorf("the status does not show that there is no cache: %+v", s)
	}
	if out := run(t, "cache", "--root", d.root).good(); !strings.Contains(out, "cache off: there is no cache") ||
		!strings.Contains(d.said(), "without a cache") {
		t.Errorf("printed %q", out)
	}
	run(t, "cache", "pin", "--root", d.root, "tools:1").bad(1, "no cache")
	faulty.Fail(0, faultfs.Open)
	run(t, "unmount", "--root", d.root, dir).good()
}

// The disk of the cache hangs, for reads and then for writes. Containers read from the hub, and the
// node still ends on SIGTERM.
func TestDiskHangsUnderAMount(t *testing.T) {
	root := newRoot(t)
	dir, disk := t.TempDir(), filepath.Join(root, "cache")
	if err := os.MkdirAll(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	hanging, err := faultfs.Mount(t.TempDir(), disk)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hanging.Close(disk) })
	d := startNode(t, root, "--address", "", "--cache-size", "64MiB")
	t.Cleanup(hanging.Release) // before the node is stopped
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	shows(t, dir)
	hanging.Hang("", faultfs.Read, faultfs.Write, faultfs.Open, faultfs.Unlink)
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	shows(t, dir)
	if hanging.Hanging(faultfs.Read) == 0 {
		t.Error("the read waited for the disk")
	}
	if s := status(t, d.root).Cache; s.Hung == 0 || s.Damaged+s.Unread > 0 {
		t.Errorf("the status does not show the failure: %+v", s)
	}
	hanging.Release()
	eventually(t, "a new attempt to read the disk", func() bool {
		s := status(t, d.root).Cache
		return s.Off() == ""
	})
	hits := status(t, d.root).Cache.Hits
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	shows(t, dir)
	if s := status(t, d.root).Cache; s.Hits == hits {
		t.Errorf("the cache is not read again: %+v", s)
	}
	run(t, "unmount", "--root", d.root, dir).good()
}
