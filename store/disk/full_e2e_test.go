//go:build e2e

package disk

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/eventually"
)

// Each file system allocates blocks in its own way: XFS gives a growing file more than it needs.
func TestLimitOnFileSystems(t *testing.T) {
	small, _ := ext4(t, 64, "", "")
	large, _ := onLoop(t, 512, "mkfs.xfs -q", "")
	for name, dir := range map[string]string{"tmpfs": ram(t, "size=64m"), "ext4": small, "XFS": large} {
		t.Run(name, func(t *testing.T) { limitAtEachMoment(t, filepath.Join(dir, "cache")) })
	}
}

// On a full disk chunks are not stored. The cache works again once there is room.
func TestFullDisk(t *testing.T) {
	small, _ := ext4(t, 16, "", "")
	for name, dir := range map[string]string{"tmpfs": ram(t, "size=8m"), "ext4": small} {
		t.Run(name, func(t *testing.T) {
			c := open(t, filepath.Join(dir, "cache"), MinLimit)
			n := putAll(t, c, 0, 500)
			if s := c.Stats(); s.Failed == 0 {
				t.Errorf("stats of a full disk: got %+v, want failed writes", s)
			} else if n == 0 && s.OffUntil.IsZero() {
				t.Errorf("no chunk was stored: got %+v, want an open breaker", s)
			}
			c.Prune()
			ready(c)
			if n := putAll(t, c, 1000, 1020); n != 20 {
				t.Errorf("once there is room again: got %d chunks, want 20", n)
			}
		})
	}
}

// The cache leaves its low mark free. When other data fills the disk, it evicts until its high mark
// is free.
func TestDiskRunsShort(t *testing.T) {
	dir := ram(t, "size=64m")
	const MB = 1 << 20
	limits := Limits{Size: MinLimit, Low: Space{Percent: 25}, High: Space{Bytes: 24 * MB}}
	c := openSmall(t, filepath.Join(dir, "cache"), limits, MB)
	putAll(t, c, 0, 1500) // 75 MB: more than there is
	s := c.Stats()
	if s.Failed > 0 || s.Used < 30*MB || s.Used > 48*MB {
		t.Errorf("alone on the disk: got %+v, want 30 to 48 MB used and no failed write", s)
	}
	if err := os.WriteFile(filepath.Join(dir, "others"), make([]byte, 12*MB), 0o600); err != nil {
		t.Fatal(err)
	}
	free := func() int64 {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil {
			t.Fatal(err)
		}
		return int64(fs.Bavail) * fs.Bsize
	}
	eventually.Holds(t, "the high mark is free", func() bool { return free() >= 23*MB })
	if s := c.Stats(); s.Used < 4*MB || s.Room > 30*MB {
		t.Errorf("after the eviction: got %+v, want at least 4 MB used and at most 30 MB of room", s)
	}
	putAll(t, c, 2000, 3500)
	if s := c.Stats(); s.Failed > 0 || free() < 16*MB-MB {
		t.Errorf("after more chunks were put: got %d bytes free, want the low mark: %+v", free(), s)
	}
	if err := os.Remove(filepath.Join(dir, "others")); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "there is room again", func() bool { return c.Stats().Room > 40*MB })
	// When others have taken all the room, the cache keeps a sixteenth of its limit, until the disk
	// is full.
	others, err := os.Create(filepath.Join(dir, "others"))
	if err != nil {
		t.Fatal(err)
	}
	defer others.Close()
	eventually.Holds(t, "others have nearly all of the disk", func() bool {
		_, err := others.Write(make([]byte, MB))
		if err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		info, err := others.Stat()
		return err == nil && info.Size() > 58*MB
	})
	eventually.Holds(t, "the cache has shrunk to its minimum", func() bool {
		return c.Stats().Room == 4*MB && c.Stats().Used <= 4*MB
	})
	if putAll(t, c, 4000, 4040) == 0 {
		t.Error("on a disk that others have filled: got no chunk stored")
	}
}

// ext4 turns read-only after an error: cached chunks can still be read.
func TestDiskTurnsReadOnly(t *testing.T) {
	dir, device := ext4(t, 32, "", "errors=remount-ro")
	c := open(t, filepath.Join(dir, "cache"), MinLimit)
	if n := putAll(t, c, 0, 20); n != 20 {
		t.Fatalf("got %d chunks, want 20", n)
	}
	if err := os.WriteFile("/sys/fs/ext4/"+device+"/trigger_fs_error", []byte("a test"), 0o200); err != nil {
		t.Fatal(err)
	}
	if n := putAll(t, c, 20, 40); n > 0 {
		t.Errorf("on a read-only disk: got %d chunks written, want 0", n)
	}
	if n := countRange(t, c, 0, 20, faultLength); n != 20 {
		t.Errorf("on a read-only disk: got %d chunks read, want 20", n)
	}
	if s := c.Stats(); s.Failed == 0 || s.OffUntil.IsZero() {
		t.Errorf("got %+v, want failed writes and a pause of writes", s)
	}
	if freed := c.Prune(); freed.Bytes > 0 || c.Stats().Used == 0 {
		t.Errorf("Prune of a read-only disk: got %+v, want nothing", freed)
	}
}
