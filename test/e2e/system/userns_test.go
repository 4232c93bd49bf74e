//go:build e2e

package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
)

// userns runs a container in a user namespace. It maps length IDs from 0 on to the host's IDs from
// uid and gid on.
func userns(t *testing.T, s *site.Site, name, id string, uid, gid, length int, argv ...string) string {
	t.Helper()
	args := []string{"run", "--uidmap", fmt.Sprintf("0:%d:%d", uid, length), "--gidmap",
		fmt.Sprintf("0:%d:%d", gid, length), "--remap-labels",
		"--snapshotter", site.Lighter}
	switch argv[0] {
	case "sleep":
		args = append(args, "--detach")
	case "--read-only":
		args, argv = append(args, argv[0]), argv[1:]
	}
	return ctr(t, s, append(append(args, site.Reference(name), id), argv...)...)
}

// upper checks the owners, on the host, of the files /etc/written in the containers' upper
// directories, in any order.
func upper(t *testing.T, s *site.Site, owners ...string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.Machine.NodeRoot(), "snapshots/[0-9]*/fs/etc/written"))
	if err != nil || len(found) != len(owners) {
		t.Fatalf("written: %v, %v", found, err)
	}
	var got []string
	for _, path := range found {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		stat := info.Sys().(*syscall.Stat_t)
		got = append(got, fmt.Sprintf("%d:%d", stat.Uid, stat.Gid))
	}
	for _, owner := range owners {
		if strings.Count(strings.Join(got, " "), owner) != 1 {
			t.Errorf("%v belong to %v, want %v", found, got, owners)
		}
	}
}

// noClones checks that no ID-mapped mounts of containers are left: n trees are mounted, each of
// them once.
func noClones(t *testing.T, s *site.Site, n int) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var trees []string
	for _, line := range strings.Split(string(mounts), "\n") {
		fields := strings.Fields(line) // proc_pid_mountinfo(5)
		if !strings.Contains(line, s.Dir) || len(fields) < 6 {
			continue
		}
		mapped := strings.Contains(fields[5], "idmapped")
		if mapped || strings.Contains(line, " - erofs ") {
			trees = append(trees, line)
		}
		if mapped {
			t.Errorf("left: %s", line)
		}
	}
	if len(trees) != n {
		t.Errorf("%d trees are mounted, but there are\n%s", n, strings.Join(trees, "\n"))
	}
}

// In a user namespace, files have the owners of the image, and new files belong, on the host, to
// the namespace's root. The test uses an unpacked image, a lazy one, and one with lazy lower
// layers.
func TestUserNamespaces(t *testing.T) {
	s := start(t, site.Options{RemapIDs: true}, "base")
	if moved := received(t, s, func() { pull(t, s, site.Lighter, "base") }); moved < 20<<20 {
		t.Errorf("the pull received %d bytes, want a whole image", moved)
	}
	seesOwners(t, s, "base")
	removeImage(t, s, "base")

	if err := s.Hub.Add(t.Context(), "base"); err != nil {
		t.Fatal(err)
	}
	restartNode(t, s) // the node has cached that the hub does not know the image
	if moved := received(t, s, func() { pull(t, s, site.Lighter, "base") }); moved > 3<<20 {
		t.Errorf("the pull received %d bytes", moved)
	}
	seesOwners(t, s, "base")
	differentMaps(t, s)

	work, err := site.Work()
	if err != nil {
		t.Fatal(err)
	}
	mine := filepath.Join(s.Dir, "mine")
	if err := layout.Extend(filepath.Join(work, "images/base"), mine,
		func(l *layout.Layer) error { return l.File("etc/mine", []byte("mine")) }); err != nil {
		t.Fatal(err)
	}
	if err := s.Push(t.Context(), mine, "mine"); err != nil {
		t.Fatal(err)
	}
	pull(t, s, site.Lighter, "mine")
	seesOwners(t, s, "mine")
	if st := status(t, s); len(st.Mounts) != 1 {
		t.Errorf("mounted: %+v", st.Mounts)
	}
	removeImage(t, s, "mine")
	removeImage(t, s, "base")
	if err := s.Machine.StopNode(); err != nil {
		t.Error(err)
	}
	if files := left(t, s); len(files) != 0 {
		t.Errorf("left: %v", files)
	}
}

// seesOwners runs a container of an image in a user namespace, and then one without, which sees the
// original owners.
func seesOwners(t *testing.T, s *site.Site, name string) {
	t.Helper()
	const look = "stat -c %u:%g /etc/passwd /etc/shadow /usr/bin/env && head -c 5 /etc/passwd && echo x " +
		">/etc/written && " +
		"chown 1:1 /etc/group && stat -c %u:%g /etc/group && find /etc /usr /var -xdev -uid 65534 | wc -l"
	id := "mapped-" + name
	if got := userns(t, s, name, id, 100000, 200000, 65536, "sh", "-c", look); got != "0:0\n0:42\n0:0\nroot:1:1\n0\n" {
		t.Errorf("%s: the container sees %q", name, got)
	}
	upper(t, s, "100000:200000")
	ctr(t, s, "containers", "rm", id)
	// With --read-only, the container's root is a view.
	if got := userns(t, s, name, id, 100000, 200000, 65536, "--read-only", "stat", "-c", "%u:%g", "/etc/shadow",
		"/etc/group"); got != "0:42\n0:0\n" {
		t.Errorf("%s: a view shows %q", name, got)
	}
	ctr(t, s, "containers", "rm", id)
	if out := run(t, s, site.Lighter, name, "stat", "-c", "%u:%g", "/etc/passwd", "/etc/group"); out != "0:0\n0:0\n" {
		t.Errorf("%s without a user namespace: %q", name, out)
	}
}

// differentMaps runs containers of a lazy image with different mappings at the same time. The node
// is killed meanwhile, and then the containers are removed one after the other.
func differentMaps(t *testing.T, s *site.Site) {
	t.Helper()
	const write = "stat -c %u:%g /etc/shadow; echo x >/etc/written"
	exec := func(id, script, want string) {
		t.Helper()
		if out := ctr(t, s, "tasks", "exec", "--exec-id", "x", id, "sh", "-c", script); out != want {
			t.Errorf("%s: %q, want %q", id, out, want)
		}
	}
	userns(t, s, "base", "one", 100000, 200000, 65536, "sleep", "infinity")
	restartNode(t, s)
	userns(t, s, "base", "two", 300000, 400000, 65536, "sleep", "infinity")
	exec("one", write, "0:42\n")
	exec("two", write, "0:42\n")
	upper(t, s, "100000:200000", "300000:400000")
	noClones(t, s, 1)
	// Files with unmapped IDs belong to nobody, as on every overlay of ID-mapped layers.
	few := userns(t, s, "base", "few", 500000, 600000, 42, "sh", "-c",
		"stat -c %u:%g /etc/shadow; head -c 4 /etc/passwd; (cat /etc/shadow || echo x >>/etc/shadow) 2>/dev/null || "+
			"echo :no")
	if few != "0:65534\nroot:no\n" {
		t.Errorf("with 42 IDs: %q", few)
	}
	ctr(t, s, "containers", "rm", "few")
	restartNode(t, s)
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	ctr(t, s, "tasks", "rm", "--force", "one")
	ctr(t, s, "containers", "rm", "one")
	exec("two", "head -c 3 /etc/debian_version; stat -c :%u:%g /etc/gshadow", "12.:0:42\n")
	ctr(t, s, "tasks", "rm", "--force", "two")
	ctr(t, s, "containers", "rm", "two")
	noClones(t, s, 1)
}
