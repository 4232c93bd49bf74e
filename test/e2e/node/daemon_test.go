//go:build e2e

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/node/keeper"
	"lighter/node/mount"
	"lighter/node/report"
	"lighter/store/disk"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/site"
	"lighter/test/testkit/socketdir"
)

// As the README says, a ready node listens on the default socket if no address is given, and only
// root has access to the socket.
func TestSockets(t *testing.T) {
	const address = "/run/lighter/lighter.sock"
	d := startNode(t, newRoot(t))
	for _, path := range []string{address, filepath.Join(d.root, "control.sock")} {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Errorf("connect to a socket of a ready node: %v", err)
			continue
		}
		conn.Close()
		wantMode(t, path, 0o600)
	}
	for _, dir := range []string{d.root, filepath.Dir(address)} {
		wantMode(t, dir, 0o700)
	}
	d.end(syscall.SIGTERM)
	if entries, err := os.ReadDir(filepath.Dir(address)); err != nil || len(entries) > 0 {
		t.Errorf("%s of an ended node contains %v (%v), want nothing", filepath.Dir(address), entries, err)
	}
}

// wantMode fails the test unless a file has these permissions.
func wantMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Error(err)
		return
	}
	if got := info.Mode().Perm(); got != want {
		t.Errorf("%s has mode %v, want %v", path, got, want)
	}
}

// A second node is refused if a running node has the same root, also through a symlink, or the same
// socket.
func TestSecondNodeIsRefused(t *testing.T) {
	d := startNode(t, newRoot(t), "--address", "")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(d.root, link); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{d.root, link} {
		run(t, "node", "--root", root, "--address", "").bad(1, d.root, "in use", "--root")
	}
	run(t, "status", "--root", d.root).good()
	// A node with another root cannot use the same socket.
	address := filepath.Join(socketdir.New(t), "s.sock")
	startNode(t, newRoot(t), "--address", address)
	run(t, "node", "--root", newRoot(t), "--address", address).bad(1, address, "another process listens")
}

// A node refuses a root directory that other users own or can write to.
func TestRootOfOthers(t *testing.T) {
	root := newRoot(t)
	if err := errors.Join(os.Mkdir(root, 0o755), os.Chmod(root, 0o770)); err != nil {
		t.Fatal(err)
	}
	run(t, "node", "--root", root, "--address", "").bad(1, root, "chmod 700")
	if err := errors.Join(os.Chmod(root, 0o700), os.Chown(root, 1000, 0)); err != nil {
		t.Fatal(err)
	}
	run(t, "node", "--root", root, "--address", "").bad(1, root, "chown root")
	if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
		t.Errorf("files in the refused root: %v (%v), want none", entries, err)
	}
}

// Without root's rights, or without the node that it needs, a command fails with one line that says
// why.
func TestCommandsWithoutRightsOrNode(t *testing.T) {
	d := startNode(t, newRoot(t), "--address", "")
	letIn(t, d.root)
	nobody := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}
	dir, none := t.TempDir(), filepath.Join(t.TempDir(), "none")
	for _, line := range [][]string{{"status"}, {"status", "--json"}, {"cache"}, {"cache", "prune"}} {
		runAs(t, nobody, append(line, "--root", d.root)...).bad(1, "only root may use", "sudo")
		run(t, append(line, "--root", none)...).bad(4, "no lighter node is running", none, "--root")
	}
	runAs(t, nobody, "mount", "--root", d.root, "tools:1", "/").bad(1, "only root may use", "sudo")
	runAs(t, nobody, "unmount", "--root", d.root, "/").bad(1, "only root may use", "sudo")
	runAs(t, nobody, "mount", "--root", none, "tools:1", "/").bad(1, "root", "sudo")
	runAs(t, nobody, "node", "--root", none).bad(1, "root", "sudo")
	run(t, "unmount", "--root", none, dir).bad(1, "not mounted by lighter")
}

// `lighter status` shows mounts, reads and fetched bytes. `lighter cache prune` removes all chunks,
// and reads fill the cache again.
func TestStatusAndCache(t *testing.T) {
	d := startNode(t, newRoot(t), "--address", "")
	dir := t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	shows(t, dir)
	var s report.Status
	if err := json.Unmarshal([]byte(run(t, "status", "--root", d.root, "--json").good()), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Mounts) != 1 || len(s.Binds) != 1 || s.Binds[0].Dir != dir || s.Binds[0].Name != "tools:1" ||
		s.Binds[0].Chain != s.Mounts[0].Chains[0] {
		t.Errorf("mounts %+v, user-facing mounts %+v; want tools:1, once each", s.Mounts, s.Binds)
	}
	device := s.Mounts[0].Device
	if device.Faults == 0 || device.Missed == 0 || device.Missed > device.Bytes || s.Fetched.Bytes == 0 ||
		s.Cache.Used < int64(len(large)) {
		t.Errorf("device %+v, fetched %+v, cache %+v; want faults, misses, fetched bytes and a filled cache", device,
			s.Fetched, s.Cache)
	}
	text := run(t, "status", "--root", d.root).good()
	for _, word := range []string{"node " + d.root, "fetched", "cache", "MOUNTED", "MISSED", s.Mounts[0].Tree.Short(),
		dir, "tools:1"} {
		if !strings.Contains(text, word) {
			t.Errorf("the status does not contain %q:\n%s", word, text)
		}
	}
	if out := run(t, "cache", "--root", d.root).good(); !strings.HasPrefix(out, "cache ") ||
		!strings.Contains(out, "20 GiB") || strings.Contains(out, " 0 chunks") {
		t.Errorf("cache printed %q, want some chunks and the limit of 20 GiB", out)
	}
	if out := run(t, "cache", "prune", "--root", d.root).good(); !strings.Contains(out, " 0 chunks") {
		t.Errorf("cache prune printed %q, want no chunk left", out)
	}
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	shows(t, dir)
	var cache disk.Stats
	if err := json.Unmarshal([]byte(run(t, "cache", "--json", "--root", d.root).good()), &cache); err != nil ||
		cache.Used < int64(len(large)) {
		t.Errorf("cache --json: %+v (%v), want at least %d bytes", cache, err, len(large))
	}
	run(t, "unmount", "--root", d.root, dir).good()
}

// used mounts the tree of tools:1 at dir, and uses it like a container: as the lower directory of
// an overlay at merged, which is the working directory of a process. The kernel clones the mount of
// a lower directory for an overlay. So the tree's mount itself is not busy.
func used(t *testing.T, d *daemon) (dir, merged string) {
	t.Helper()
	dir, merged = t.TempDir(), t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	options := "lowerdir=" + status(t, d.root).Mounts[0].Dir + ",upperdir=" + t.TempDir() + ",workdir=" + t.TempDir()
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(merged, unix.MNT_DETACH) })
	sleeper := exec.Command("sleep", "infinity")
	sleeper.Dir = merged
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() })
	return dir, merged
}

// A node ends by SIGKILL or SIGTERM while its trees are in use. Reads wait for the next node, which
// answers them.
func TestReadersWaitForTheNextNode(t *testing.T) {
	t.Run("its own keeper", func(t *testing.T) { readersWait(t, newRoot(t)) })
	t.Run("a keeper that is a service", func(t *testing.T) {
		root := newRoot(t)
		if err := os.Mkdir(root, 0o700); err != nil {
			t.Fatal(err)
		}
		service, err := background(filepath.Join(t.TempDir(), "keeper.log"), "keeper", "--stay", root)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = service.Process.Kill(), service.Wait() })
		eventually.Holds(t, "the keeper's socket", func() bool {
			_, err := os.Stat(keeper.Socket(root))
			return err == nil
		})
		readersWait(t, root)
		if running := keepers(t, root); !slices.Equal(running, []int{service.Process.Pid}) {
			t.Errorf("the keepers are %v, want the service alone, %d", running, service.Process.Pid)
		}
	})
}

// keepers returns the keeper processes of a root.
func keepers(t *testing.T, root string) (pids []int) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		line, err := os.ReadFile(path)
		args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		pid, malformed := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && malformed == nil && slices.Contains(args, "keeper") && args[len(args)-1] == root {
			pids = append(pids, pid)
		}
	}
	return pids
}

func readersWait(t *testing.T, root string) {
	d := startNode(t, root, "--address", "")
	dir, merged := used(t, d)
	for i, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGKILL} {
		if i == 2 { // the next node has to fetch the chunks
			run(t, "cache", "prune", "--root", d.root).good()
		}
		d.end(signal)
		if err := site.DropCaches(); err != nil {
			t.Fatal(err)
		}
		read := make(chan error, 1)
		go func() {
			got, err := os.ReadFile(filepath.Join(merged, "large"))
			if err == nil && !bytes.Equal(got, large) {
				err = errors.New("the read returned wrong bytes")
			}
			read <- err
		}()
		select {
		case err := <-read:
			t.Fatalf("a read was answered without a node: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		d.start()
		if err := <-read; err != nil {
			t.Errorf("the read after the node's end by %s: %v", signal, err)
		}
		shows(t, dir)
		other := t.TempDir()
		run(t, "mount", "--root", d.root, "tools:1", other).good()
		shows(t, other)
		run(t, "unmount", "--root", d.root, other).good()
		if n := mountsOn(t, dir); n != 1 {
			t.Errorf("%d mounts on %s, want 1", n, dir)
		}
	}
	run(t, "unmount", "--root", d.root, dir).good()
}

// A node is killed, and its keeper ends, while a tree is in use. Reads of the container fail. The
// next node restores the user's mount of the tree, and can mount the tree elsewhere, too. It leaves
// directories of others alone.
func TestNodeAndKeeperAreKilled(t *testing.T) {
	for _, mode := range []mount.Mode{mount.File, mount.Loop} {
		t.Run(string(mode), func(t *testing.T) { nodeAndKeeperAreKilled(t, mode) })
	}
}

func nodeAndKeeperAreKilled(t *testing.T, mode mount.Mode) {
	d := startNode(t, newRoot(t), "--address", "", "--mount-mode", string(mode))
	dir, merged := used(t, d)
	// The node has not made this directory, which lies among its mount points.
	foreign := filepath.Join(d.root, "mounts", "foreign")
	if err := errors.Join(os.Mkdir(foreign, 0o700),
		os.WriteFile(filepath.Join(foreign, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d.lose()
		if err := site.DropCaches(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.ReadFile(filepath.Join(merged, "large")); err == nil {
			t.Error("a read without node and keeper succeeded, want an error")
		}
		d.start()
		shows(t, dir) // mounted again
		if s := status(t, d.root); len(s.Mounts) != 1 || s.Mounts[0].Mode != mode {
			t.Errorf("mounts %+v, want one with mode %s", s.Mounts, mode)
		}
		other := t.TempDir()
		run(t, "mount", "--root", d.root, "tools:1", other).good()
		shows(t, other)
		run(t, "unmount", "--root", d.root, other).good()
	}
	if n := mountsOn(t, dir); n != 1 {
		t.Errorf("%d mounts on %s, want 1", n, dir)
	}
	run(t, "unmount", "--root", d.root, dir).good()
	if _, err := os.Stat(filepath.Join(foreign, "file")); err != nil {
		t.Error(err)
	}
}

// `lighter unmount` works after the node was killed. The next node does not mount the image again,
// and removes its tree.
func TestUnmountAfterTheNodeWasKilled(t *testing.T) {
	d := startNode(t, newRoot(t), "--address", "")
	dir := t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	d.end(syscall.SIGKILL)
	run(t, "unmount", "--root", d.root, dir).good()
	if n := mountsOn(t, dir); n != 0 {
		t.Errorf("%d mounts on %s, want none", n, dir)
	}
	d.start()
	if s := status(t, d.root); len(s.Binds)+len(s.Mounts) != 0 || mountsOn(t, dir) != 0 {
		t.Errorf("after the restart: user-facing mounts %+v, mounts %+v; want none", s.Binds, s.Mounts)
	}
	if trees, err := filepath.Glob(filepath.Join(d.root, "trees/*")); err != nil || len(trees) > 0 {
		t.Errorf("trees on the disk: %s (%v), want none", trees, err)
	}
}

// A damaged tree is not mounted, but fetched again.
func TestDamagedIndex(t *testing.T) {
	d := startNode(t, newRoot(t), "--address", "")
	dir := t.TempDir()
	for name, damage := range map[string]func(path string) error{
		"a flipped bit in metadata": flip("metadata"),
		"truncated metadata": func(path string) error {
			return os.Truncate(filepath.Join(path, "metadata"),
				4096)
		},
		"a flipped bit in map": flip("map"),
		"a missing map":        func(path string) error { return os.Remove(filepath.Join(path, "map")) },
		"missing metadata and an unfinished new one": func(path string) error {
			left := filepath.Join(filepath.Dir(path), "new-"+filepath.Base(path))
			return errors.Join(os.Remove(filepath.Join(path, "metadata")), os.Mkdir(left, 0o700))
		},
	} {
		run(t, "mount", "--root", d.root, "tools:1", dir).good()
		tree := status(t, d.root).Mounts[0].Tree.String()
		d.lose() // the next node mounts the same trees again
		if err := damage(filepath.Join(d.root, "trees", tree)); err != nil {
			t.Fatalf("make %s: %v", name, err)
		}
		d.start()
		shows(t, dir)
		if !strings.Contains(d.said(), "is damaged on the disk") {
			t.Errorf("%s: the node's log does not say that the tree is damaged:\n%s", name, d.said())
		}
		run(t, "unmount", "--root", d.root, dir).good()
	}
}

// flip returns a function that flips a bit in the last byte of a named file of a tree.
func flip(name string) func(path string) error {
	return func(path string) error {
		path = filepath.Join(path, name)
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		b[len(b)-1] ^= 1
		return errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, b, 0o600))
	}
}

// A node ends if its device directory is unmounted, because it could not mount trees any more.
func TestDevicesAreUnmounted(t *testing.T) {
	d := startNode(t, newRoot(t), "--address", "")
	if err := unix.Unmount(filepath.Join(d.root, "devices"), unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Wait(); err == nil || !strings.Contains(d.said(), "devices unmounted?") {
		t.Errorf("the node ended with %v, want an error that names the cause: %s", err, d.said())
	}
	d.start()
}

// Without a hub, a node cannot restore a user's mount of a damaged tree. The node starts anyway.
// The next node, which has a hub, restores the mount.
func TestDamagedIndexWithoutAHub(t *testing.T) {
	d := startNode(t, newRoot(t), "--address", "")
	dir := t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	tree := status(t, d.root).Mounts[0].Tree.String()
	d.lose()
	if err := flip("metadata")(filepath.Join(d.root, "trees", tree)); err != nil {
		t.Fatal(err)
	}
	usual := d.args // with the default hub
	d.args = append(d.args, "--hub", "http://127.0.0.1:1")
	d.start()
	if s := status(t, d.root); len(s.Binds) != 1 || s.Binds[0].Lost == "" || mountsOn(t, dir) != 0 ||
		!strings.Contains(d.said(), "is not mounted any more") {
		t.Errorf("user-facing mounts %+v, %d mounts on %s; want one lost, none mounted; the node's log:\n%s", s.Binds,
			mountsOn(t, dir), dir, d.said())
	}
	d.end(syscall.SIGTERM)
	d.args = usual
	d.start()
	shows(t, dir)
	run(t, "unmount", "--root", d.root, dir).good()
	if s := status(t, d.root); len(s.Binds) != 0 {
		t.Errorf("user-facing mounts after unmount: %+v, want none", s.Binds)
	}
}

// The next node reports a tree that it cannot serve, and serves all other trees. Another mount of
// the image repairs the tree.
func TestLostTree(t *testing.T) {
	d := startNode(t, newRoot(t), "--address", "")
	dir, other := t.TempDir(), t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	tree := status(t, d.root).Mounts[0].Tree.String()
	run(t, "mount", "--root", d.root, "both:1", other, "--platform", "linux/arm64").good()
	d.end(syscall.SIGKILL)
	if err := os.Truncate(filepath.Join(d.root, "trees", tree, "map"), 10); err != nil {
		t.Fatal(err)
	}
	d.start()
	s := status(t, d.root)
	if len(s.Lost) != 1 || s.Lost[0].Tree.String() != tree || len(s.Lost[0].Chains) != 1 ||
		len(s.Lost[0].Images) != 1 || s.Lost[0].Images[0] != "tools:1" || s.Lost[0].Cause == "" {
		t.Errorf("lost trees: %+v, want that of tools:1 with a cause", s.Lost)
	}
	if !strings.Contains(d.said(), "tools:1") || !strings.Contains(d.said(), "could not be recovered") {
		t.Errorf("the node's log does not say that the tree of tools:1 could not be recovered:\n%s", d.said())
	}
	if out := run(t, "status", "--root", d.root).good(); !strings.Contains(out, "BROKEN TREE") {
		t.Errorf("the status does not show the lost tree:\n%s", out)
	}
	if got, err := os.ReadFile(filepath.Join(other, "large")); err != nil || !bytes.Equal(got, large) {
		t.Errorf("read of another image: %d bytes (%v), want the %d of its file", len(got), err, len(large))
	}
	again := t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", again).good()
	shows(t, again)
	if s := status(t, d.root); len(s.Lost) != 0 {
		t.Errorf("lost trees after a new mount: %+v, want none", s.Lost)
	}
	for _, dir := range []string{dir, other, again} {
		run(t, "unmount", "--root", d.root, dir).good()
	}
}
