//go:build e2e

package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"lighter/test/testkit/eventually"
	"lighter/test/testkit/images"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
	"lighter/test/testkit/workdir"
)

// userns runs a container in a user namespace. The namespace's IDs from 0 to length-1 are the
// host's user IDs from uid on, and group IDs from gid on. Before the command, argv may have the
// flag --read-only. The command sleep runs in the background.
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

// upper checks the files /etc/written in the containers' upper directories: their owners on the
// host must be owners, in any order. An owner is written as UID:GID. containerd removes the
// snapshots of removed containers in the background.
func upper(t *testing.T, s *site.Site, owners ...string) {
	t.Helper()
	var found []string
	eventually.Holds(t, fmt.Sprintf("%d files /etc/written in upper directories", len(owners)), func() bool {
		var err error
		found, err = filepath.Glob(filepath.Join(s.Machine.NodeRoot(), "snapshots/[0-9]*/fs/etc/written"))
		return err == nil && len(found) == len(owners)
	})
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
			t.Errorf("owners of %v: got %v, want %v", found, got, owners)
		}
	}
}

// noClones checks that no ID-mapped mount of a container is left: the site has n mounts of trees,
// and none is ID-mapped.
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
			t.Errorf("an ID-mapped mount is left: %s", line)
		}
	}
	if len(trees) != n {
		t.Errorf("got the mounts of trees\n%s\nwant %d", strings.Join(trees, "\n"), n)
	}
}

// In a user namespace, files have the owners that the image gives them. On the host, new files
// belong to the namespace's root. The test uses an unpacked image, a lazy image, and an image whose
// lower layers are lazy.
func TestUserNamespaces(t *testing.T) {
	s := start(t, site.Options{RemapIDs: true}, "base")
	if moved := images.Received(t, s, func() { pull(t, s, site.Lighter, "base") }); moved < 20<<20 {
		t.Errorf("the pull received %d bytes, want a whole image", moved)
	}
	seesOwners(t, s, "base")
	removeImage(t, s, "base")

	if err := s.Hub.Add(t.Context(), "base"); err != nil {
		t.Fatal(err)
	}
	restartNode(t, s) // the running node remembers that the hub does not know the image
	if moved := images.Received(t, s, func() { pull(t, s, site.Lighter, "base") }); moved > 3<<20 {
		t.Errorf("the pull received %d bytes, want at most 3 MiB: no layer", moved)
	}
	seesOwners(t, s, "base")
	differentMaps(t, s)

	work, err := workdir.Path()
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
	if st := sitetest.Status(t, s); len(st.Mounts) != 1 {
		t.Errorf("mounts: %+v, want one, of the lazy lower layers", st.Mounts)
	}
	removeImage(t, s, "mine")
	removeImage(t, s, "base")
	if err := s.Machine.StopNode(); err != nil {
		t.Error(err)
	}
	if files := left(t, s); len(files) != 0 {
		t.Errorf("files and mounts after the images were removed: %v, want none", files)
	}
}

// seesOwners runs containers of an image in a user namespace, and then a container without a user
// namespace. All see the image's owners.
func seesOwners(t *testing.T, s *site.Site, name string) {
	t.Helper()
	const look = "stat -c %u:%g /etc/passwd /etc/shadow /usr/bin/env && head -c 5 /etc/passwd && echo x " +
		">/etc/written && " +
		"chown 1:1 /etc/group && stat -c %u:%g /etc/group && find /etc /usr /var -xdev -uid 65534 | wc -l"
	id := "mapped-" + name
	want := "0:0\n0:42\n0:0\nroot:1:1\n0\n"
	if got := userns(t, s, name, id, 100000, 200000, 65536, "sh", "-c", look); got != want {
		t.Errorf("%s: the container sees %q, want %q", name, got, want)
	}
	upper(t, s, "100000:200000")
	ctr(t, s, "containers", "rm", id)
	// With --read-only, the container's root is a view snapshot.
	if got := userns(t, s, name, id, 100000, 200000, 65536, "--read-only", "stat", "-c", "%u:%g", "/etc/shadow",
		"/etc/group"); got != "0:42\n0:0\n" {
		t.Errorf("%s: a container on a view sees the owners %q, want \"0:42\\n0:0\\n\"", name, got)
	}
	ctr(t, s, "containers", "rm", id)
	if out := run(t, s, site.Lighter, name, "stat", "-c", "%u:%g", "/etc/passwd", "/etc/group"); out != "0:0\n0:0\n" {
		t.Errorf("%s: a container without a user namespace sees the owners %q, want \"0:0\\n0:0\\n\"", name, out)
	}
}

// differentMaps runs containers of a lazy image at the same time, each with a different mapping of
// IDs. The node is killed meanwhile. Then the containers are removed one after the other.
func differentMaps(t *testing.T, s *site.Site) {
	t.Helper()
	const write = "stat -c %u:%g /etc/shadow; echo x >/etc/written"
	exec := func(id, script, want string) {
		t.Helper()
		if out := ctr(t, s, "tasks", "exec", "--exec-id", "x", id, "sh", "-c", script); out != want {
			t.Errorf("container %s: %s printed %q, want %q", id, script, out, want)
		}
	}
	userns(t, s, "base", "one", 100000, 200000, 65536, "sleep", "infinity")
	restartNode(t, s)
	userns(t, s, "base", "two", 300000, 400000, 65536, "sleep", "infinity")
	exec("one", write, "0:42\n")
	exec("two", write, "0:42\n")
	upper(t, s, "100000:200000", "300000:400000")
	noClones(t, s, 1)
	// Files whose ID is not mapped belong to nobody (65534), as on every overlay of ID-mapped
	// layers.
	few := userns(t, s, "base", "few", 500000, 600000, 42, "sh", "-c",
		"stat -c %u:%g /etc/shadow; head -c 4 /etc/passwd; (cat /etc/shadow || echo x >>/etc/shadow) 2>/dev/null || "+
			"echo :no")
	if few != "0:65534\nroot:no\n" {
		t.Errorf("a container with 42 mapped IDs prints %q, want \"0:65534\\nroot:no\\n\"", few)
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
