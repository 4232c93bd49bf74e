//go:build e2e

package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"lighter/test/testkit/site"
)

// inUserns runs a shell command in a container whose user namespace makes the
// host's ID 100000 of its root, and returns what it prints.
func inUserns(t *testing.T, s *site.Site, name, command string) string {
	t.Helper()
	id := fmt.Sprint("userns", name)
	out := ctr(t, s, "run", "--uidmap", "0:100000:65536", "--gidmap", "0:200000:65536", "--remap-labels",
		"--snapshotter", site.Lighter, site.Reference(name), id, "sh", "-c", command)
	upper(t, s)
	ctr(t, s, "containers", "rm", id)
	return out
}

// upper looks at what the container has written.
func upper(t *testing.T, s *site.Site) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.Machine.NodeRoot(), "snapshots/[0-9]*/fs/etc/written"))
	if err != nil || len(found) != 1 {
		t.Fatalf("written: %v, %v", found, err)
	}
	info, err := os.Stat(found[0])
	if err != nil {
		t.Fatal(err)
	}
	if stat := info.Sys().(*syscall.Stat_t); stat.Uid != 100000 || stat.Gid != 200000 {
		t.Errorf("%s belongs to %d:%d", found[0], stat.Uid, stat.Gid)
	}
}

// In a user namespace the image's files have the owners that it says, and what is
// written belongs to the namespace's root outside: of a lazy image, of one that
// was unpacked, and of one whose lower layers are lazy.
func TestUserNamespaces(t *testing.T) {
	const command = "stat -c %u:%g /etc/passwd /etc/shadow /usr/bin/env && head -c 5 /etc/passwd && echo x >/etc/written && " +
		"chown 1:1 /etc/group && stat -c %u:%g /etc/group && find /etc /usr /var -xdev -uid 65534 | wc -l"
	const want = "0:0\n0:42\n0:0\nroot:1:1\n0\n"
	for _, images := range [][]string{{"+base"}, {"base"}, {"+base", "python"}} {
		t.Run(strings.Join(images, " "), func(t *testing.T) {
			s := start(t, site.Options{RemapIDs: true}, images...)
			name := strings.TrimPrefix(images[len(images)-1], "+")
			moved := received(t, s, func() { pull(t, s, site.Lighter, name) })
			if lazy := images[0] == "+base" && name == "base"; lazy != (moved < 3<<20) {
				t.Errorf("the pull moved %d bytes", moved)
			}
			if got := inUserns(t, s, name, command); got != want {
				t.Errorf("it sees %q, want %q", got, want)
			}
			restartNode(t, s)
			// Others see the image as it is.
			if out := run(t, s, site.Lighter, name, "stat", "-c", "%u:%g", "/etc/passwd", "/etc/group"); out != "0:0\n0:0\n" {
				t.Errorf("without a user namespace: %q", out)
			}
			removeImage(t, s, name)
			if err := s.Machine.StopNode(); err != nil {
				t.Error(err)
			}
			if files := left(t, s); len(files) != 0 {
				t.Errorf("left: %v", files)
			}
		})
	}
}
