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
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/faultfs"
	"lighter/test/testkit/site"
)

// cache runs a command of `lighter cache` and decodes its JSON output.
func cache[T any](t *testing.T, d *daemon, args ...string) (answer T) {
	t.Helper()
	out := run(t, append(append([]string{"cache"}, args...), "--root", d.root, "--json")...)
	if out.code != 0 {
		t.Fatalf("%s: exit code %d, want 0: %s", out.line, out.code, out.stderr)
	}
	if err := json.Unmarshal([]byte(out.stdout), &answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

// The cache commands (pin, unpin, evict, prune, scrub) accept each name of an image: its reference,
// its chain, its tree, and the first digits of the tree. Pinned chunks are not pruned, and pins
// last across a restart. Chunks that scrub finds damaged are fetched again for readers.
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
		t.Errorf("pins: %+v, want tools:1 with at least %d bytes, none of them cached", pinned.Pins, len(large))
	}
	pinned = cache[imagecache.Status](t, d, "pin", "--fetch", tools.Chain)
	if len(pinned.Pins) != 1 || pinned.Pins[0].Cached != pinned.Pins[0].Bytes {
		t.Errorf("pins after pin --fetch: %+v, want one with all bytes cached", pinned.Pins)
	}
	id := pinned.Pins[0].ID
	if fetched := status(t, d.root).Fetched; fetched.Bytes < int64(len(large)) {
		t.Errorf("fetched %+v, want at least %d bytes", fetched, len(large))
	}
	pruned := cache[imagecache.Freed](t, d, "prune")
	if pruned.Pins[0].Cached != pruned.Pins[0].Bytes {
		t.Errorf("after prune: %+v, want all pinned bytes cached", pruned)
	}
	d.end(syscall.SIGKILL)
	d.start()
	if pins := cache[imagecache.Status](t, d).Pins; len(pins) != 1 || pins[0] != pinned.Pins[0] {
		t.Errorf("pins after a restart: %+v, want %+v", pins, pinned.Pins[:1])
	}
	text := run(t, "cache", "--root", d.root).good()
	for _, word := range []string{"pinned", "tools:1", id.Short()} {
		if !strings.Contains(text, word) {
			t.Errorf("the output of cache does not contain %q: %s", word, text)
		}
	}
	// The first 12 digits of a tree ID name an image, the last 12 do not.
	run(t, "cache", "unpin", "--root", d.root, id.String()[52:]).bad(1, "tools:1")
	if left := cache[imagecache.Status](t, d, "unpin", id.Short()); len(left.Pins) > 0 {
		t.Errorf("pins after unpin: %+v, want none", left.Pins)
	}
	// The mounted image both:1 has the same large file, so evicting tools:1 frees almost nothing.
	if freed := cache[imagecache.Freed](t, d, "evict", id.String()); freed.Freed.Chunks > 3 ||
		freed.Used < int64(len(large)) {
		t.Errorf("evict with a shared file: %+v, want at most 3 chunks freed, %d bytes used", freed, len(large))
	}
	run(t, "unmount", "--root", d.root, both).good()
	if freed := cache[imagecache.Freed](t, d, "evict", "tools:1"); freed.Freed.Bytes < int64(len(large)) {
		t.Errorf("evict: %+v, want at least %d bytes freed", freed, len(large))
	}
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	shows(t, dir)
	scrubbed := cache[imagecache.Scrubbed](t, d, "scrub")
	if scrubbed.Found.Bytes < int64(len(large)) || scrubbed.Found.Damaged > 0 {
		t.Errorf("scrub: %+v, want at least %d bytes read and none damaged", scrubbed, len(large))
	}
	segments, _ := filepath.Glob(filepath.Join(d.root, "cache/*.segment"))
	for _, segment := range segments {
		flipEvery(t, segment, 64<<10)
	}
	if scrubbed := cache[imagecache.Scrubbed](t, d, "scrub"); scrubbed.Found.Damaged == 0 ||
		scrubbed.Damaged != scrubbed.Found.Damaged {
		t.Errorf("scrub after bits were flipped: %+v, want damaged chunks, counted also in the status", scrubbed)
	}
	shows(t, dir)
	for _, out := range []string{run(t, "cache", "prune", "--root", d.root).good(),
		run(t, "cache", "scrub", "--root", d.root).good()} {
		if !strings.Contains(out, "freed") && !strings.Contains(out, "verified") {
			t.Errorf("prune or scrub printed %q, want freed or verified", out)
		}
	}
	run(t, "unmount", "--root", d.root, dir).good()
}

// flipEvery flips one bit of a file in each interval, which is a number of bytes.
func flipEvery(t *testing.T, path string, interval int64) {
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
	for at := min(interval, info.Size()) / 2; at < info.Size(); at += interval {
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
// error. The status shows flipped bits, truncated files and a full disk.
func TestDiskFailsUnderAMount(t *testing.T) {
	d := &daemon{t: t, root: newRoot(t)}
	disk := filepath.Join(d.root, "cache")
	if err := os.MkdirAll(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "ext4")
	script := "truncate -s 24M $1 && mkfs.ext4 -q -F -m 0 $1 && mount -o loop,errors=remount-ro $1 $2"
	if out, err := exec.Command("sh", "-ec", script, "sh", image, disk).CombinedOutput(); err != nil {
		t.Fatalf("make an ext4 disk: %v: %s", err, out)
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
	check("the bytes that were read", s.Used > int64(len(large)))

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
	truncated := reread()
	check("truncated files", truncated.Damaged > s.Damaged)

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

	// ext4 makes itself read-only after an error.
	device, err := exec.Command("findmnt", "-no", "SOURCE", disk).Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/sys/fs/ext4/"+filepath.Base(strings.TrimSpace(string(device)))+"/trigger_fs_error",
		[]byte("a test"), 0o200); err != nil {
		t.Fatal(err)
	}
	reread() // the status need not change: the cache may not have used the disk since it was full

	// ext4 is shut down: each operation fails.
	f, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	flags := uint32(2)                                              // EXT4_GOING_FLAGS_NOLOGFLUSH
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), 0x8004587d, /* EXT4_IOC_SHUTDOWN */
		uintptr(unsafe.Pointer(&flags)))
	f.Close()
	if errno != 0 {
		t.Fatalf("shut ext4 down: %v", errno)
	}
	reread()

	// The disk is unmounted under the node.
	if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	reread()
	run(t, "unmount", "--root", d.root, dir).good()
}

// The disk of the cache fails reads, like a disk with bad sectors. Later a new node cannot open the
// cache. Both times, readers get the right bytes and the status shows the failure.
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
		t.Errorf("cache: %+v, want failed reads and no damage", s)
	}
	faulty.Fail(unix.EROFS, faultfs.Open)
	d.end(syscall.SIGTERM)
	d.start()
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	shows(t, dir)
	if s := cache[imagecache.Status](t, d); !strings.Contains(s.Absent, "read-only") {
		t.Errorf("cache: %+v, want absent because the disk is read-only", s)
	}
	if out := run(t, "cache", "--root", d.root).good(); !strings.Contains(out, "cache off: there is no cache") ||
		!strings.Contains(d.said(), "without a cache") {
		t.Errorf("without a cache, cache printed %q; the node's log:\n%s", out, d.said())
	}
	run(t, "cache", "pin", "--root", d.root, "tools:1").bad(1, "no cache")
	faulty.Fail(0, faultfs.Open)
	run(t, "unmount", "--root", d.root, dir).good()
}

// The disk of the cache hangs. Reads do not wait for it, but get their bytes from the hub. When the
// disk answers again, the cache is read again.
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
	t.Cleanup(hanging.Release) // runs before the cleanup that stops the node
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	shows(t, dir)
	hanging.Hang("", faultfs.Read, faultfs.Write, faultfs.Open, faultfs.Unlink)
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	shows(t, dir)
	if hanging.Hanging(faultfs.Read) == 0 {
		t.Error("no read of the disk hangs, want one that the answered reader did not wait for")
	}
	if s := status(t, d.root).Cache; s.Hung == 0 || s.Damaged+s.Unread > 0 {
		t.Errorf("cache: %+v, want unanswered operations, no damage and no failed reads", s)
	}
	hanging.Release()
	eventually.Holds(t, "a cache that uses its disk", func() bool {
		s := status(t, d.root).Cache
		return s.Off() == ""
	})
	hits := status(t, d.root).Cache.Hits
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	shows(t, dir)
	if s := status(t, d.root).Cache; s.Hits == hits {
		t.Errorf("cache: %+v, want more than %d hits", s, hits)
	}
	run(t, "unmount", "--root", d.root, dir).good()
}
