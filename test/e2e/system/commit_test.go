//go:build e2e

package system

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/test/testkit/site"
)

// A container of a lazy image changes files. Another container does not see the changes. The
// snapshot of the first container is compared with its parent and committed. A new snapshot on top
// of the committed snapshot has the changes.
func TestContainersWriteAndAreCommitted(t *testing.T) {
	s := start(t, site.Options{}, "+base")
	pull(t, s, site.Lighter, "base")
	one, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("base"), "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	two, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("base"), "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	prints := func(c *site.Container, script, want string) {
		t.Helper()
		out, err := c.Exec(t.Context(), "sh", "-c", script)
		if err != nil || out != want {
			t.Errorf("%s printed %q, want %q (%v)", script, out, want, err)
		}
	}
	prints(one, "echo new > /etc/new; echo changed >> /etc/hostname; rm /etc/issue; chmod 700 /etc/fstab; cat /etc/new",
		"new\n")
	prints(two, "cat /etc/new 2>/dev/null; ls /etc/issue; stat -c %a /etc/fstab", "/etc/issue\n644\n")

	layer := filepath.Join(t.TempDir(), "layer")
	if err := os.WriteFile(layer, []byte(ctr(t, s, "snapshots", "--snapshotter", site.Lighter, "diff", one.ID)),
		0o600); err != nil {
		t.Fatal(err)
	}
	names, err := exec.Command("tar", "-tzf", layer).Output()
	if want := "etc/\netc/fstab\netc/hostname\netc/.wh.issue\netc/new\n"; err != nil || string(names) != want {
		t.Errorf("entries of the container's layer: got %q, want %q (%v)", names, want, err)
	}
	ctr(t, s, "tasks", "kill", "--signal", "KILL", one.ID)
	parent := snapshotParent(t, s, one.ID)
	if err := waitStopped(t, s, one.ID); err != nil {
		t.Fatal(err)
	}
	// Without this label, containerd's garbage collector may remove the snapshot once the container
	// is removed.
	ctr(t, s, "snapshots", "--snapshotter", site.Lighter, "label", one.ID, "containerd.io/gc.root=test")
	ctr(t, s, "containers", "rm", "--keep-snapshot", one.ID)
	ctr(t, s, "snapshots", "--snapshotter", site.Lighter, "commit", "committed", one.ID)
	ctr(t, s, "snapshots", "--snapshotter", site.Lighter, "label", "committed", "containerd.io/gc.root=test")
	if got := snapshotParent(t, s, "committed"); got != parent {
		t.Errorf("parent of the committed snapshot: got %q, want %q", got, parent)
	}
	dir := t.TempDir()
	line, _, _ := strings.Cut(ctr(t, s, "snapshots", "--snapshotter", site.Lighter, "prepare", "--mounts", "--target",
		dir, "on-top", "committed"), "[")
	mount := strings.Fields(line)
	if out, err := exec.Command(mount[0], mount[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", mount, err, out)
	}
	defer exec.Command("umount", dir).Run()
	for path, want := range map[string]string{"etc/new": "new\n", "etc/debian_version": "12"} {
		if b, err := os.ReadFile(filepath.Join(dir, path)); err != nil || !strings.HasPrefix(string(b), want) {
			t.Errorf("%s on top of the committed snapshot: %q (%v), want %q at its beginning", path, b, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "etc/issue")); !os.IsNotExist(err) {
		t.Errorf("look for a removed file on top of the committed snapshot: %v, want that it does not exist", err)
	}
	if err := two.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// snapshotParent returns the parent of the snapshot with a key.
func snapshotParent(t testing.TB, s *site.Site, key string) string {
	t.Helper()
	for _, line := range strings.Split(ctr(t, s, "snapshots", "--snapshotter", site.Lighter, "ls"), "\n") {
		if f := strings.Fields(line); len(f) == 3 && f[0] == key {
			return f[1]
		}
	}
	t.Fatalf("there is no snapshot %s with a parent", key)
	return ""
}

// waitStopped waits until the task of a container that was killed is removed.
func waitStopped(t testing.TB, s *site.Site, id string) error {
	t.Helper()
	const attempts = 200
	for range attempts {
		if !strings.Contains(ctr(t, s, "tasks", "ls"), id) {
			return nil
		}
		_, _ = s.Machine.Ctr(t.Context(), "tasks", "rm", id)
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("the task of container %s still exists after %d attempts to remove it", id, attempts)
}
