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

// Containers of a lazy image write files. The snapshot of one container is compared, committed, and
// extended.
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
	must := func(c *site.Container, script, want string) {
		t.Helper()
		out, err := c.Exec(t.Context(), "sh", "-c", script)
		if err != nil || out != want {
			t.Errorf("%s printed %q, want %q (%v)", script, out, want, err)
		}
	}
	must(one, "echo new > /etc/new; echo changed >> /etc/hostname; rm /etc/issue; chmod 700 /etc/fstab; cat /etc/new",
		"new\n")
	must(two, "cat /etc/new 2>/dev/null; ls /etc/issue; stat -c %a /etc/fstab", "/etc/issue\n644\n")

	layer := filepath.Join(t.TempDir(), "layer")
	if err := os.WriteFile(layer, []byte(ctr(t, s, "snapshots", "--snapshotter", site.Lighter, "diff", one.ID)),
		0o600); err != nil {
		t.Fatal(err)
	}
	names, err := exec.Command("tar", "-tzf", layer).Output()
	if want := "etc/\netc/fstab\netc/hostname\netc/.wh.issue\netc/new\n"; err != nil || string(names) != want {
		t.Errorf("the container's layer holds %q, want %q (%v)", names, want, err)
	}
	ctr(t, s, "tasks", "kill", "--signal", "KILL", one.ID)
	parent := snapshotParent(t, s, one.ID)
	if err := waitStopped(t, s, one.ID); err != nil {
		t.Fatal(err)
	}
	// Otherwise containerd's garbage collector may remove it once the container is gone.
	ctr(t, s, "snapshots", "--snapshotter", site.Lighter, "label", one.ID, "containerd.io/gc.root=test")
	ctr(t, s, "containers", "rm", "--keep-snapshot", one.ID)
	ctr(t, s, "snapshots", "--snapshotter", site.Lighter, "commit", "committed", one.ID)
	ctr(t, s, "snapshots", "--snapshotter", site.Lighter, "label", "committed", "containerd.io/gc.root=test")
	if got := snapshotParent(t, s, "committed"); got != parent {
		t.Errorf("parent of the committed snapshot: got %q, want %q", got, parent)
	}
	dir := t.TempDir()
	said, _, _ := strings.Cut(ctr(t, s, "snapshots", "--snapshotter", site.Lighter, "prepare", "--mounts", "--target",
		dir, "on-top", "committed"), "[")
	mount := strings.Fields(said)
	if out, err := exec.Command(mount[0], mount[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", mount, err, out)
	}
	defer exec.Command("umount", dir).Run()
	for path, want := range map[string]string{"etc/new": "new\n", "etc/debian_version": "12"} {
		if b, err := os.ReadFile(filepath.Join(dir, path)); err != nil || !strings.HasPrefix(string(b), want) {
			t.Errorf("%s on top of the commit holds %q (%v)", path, b, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "etc/issue")); !os.IsNotExist(err) {
		t.Errorf("a removed file exists in the committed snapshot: %v", err)
	}
	if err := two.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

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

func waitStopped(t testing.TB, s *site.Site, id string) error {
	t.Helper()
	for range 200 {
		if !strings.Contains(ctr(t, s, "tasks", "ls"), id) {
			return nil
		}
		_, _ = s.Machine.Ctr(t.Context(), "tasks", "rm", id)
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("container %s does not stop", id)
}
