//go:build e2e

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"lighter/node/binds"
	"lighter/node/report"
	"lighter/test/testkit/immutable"
	"lighter/test/testkit/site"
	"lighter/test/testkit/socketdir"
)

// reads checks that a container whose root is merged reads the right bytes, with an empty cache.
func reads(t *testing.T, d *daemon, merged string) {
	t.Helper()
	run(t, "cache", "prune", "--root", d.root).good()
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(merged, "large")); err != nil || !bytes.Equal(got, large) {
		t.Errorf("the container read %d bytes (%v), want the %d of its file", len(got), err, len(large))
	}
}

// leftoverPaths returns the sorted paths of the leftovers in a status.
func leftoverPaths(s report.Status) (paths []string) {
	for _, left := range s.Leftovers {
		paths = append(paths, left.Path)
	}
	slices.Sort(paths)
	return paths
}

// A node starts although some files cannot be deleted, and its list of user-facing mounts cannot be
// parsed. Containers and user-facing mounts keep working. The status and the doctor name the
// leftovers. Once the files can be deleted, the next node deletes them.
func TestNodeStartsWithLeftovers(t *testing.T) {
	address := filepath.Join(socketdir.New(t), "s.sock")
	d := startNode(t, newRoot(t), "--address", address)
	dir, merged := used(t, d)
	tree := filepath.Join(d.root, "trees", status(t, d.root).Mounts[0].Tree.String())
	id := filepath.Base(tree)
	var undeletable []string
	for _, path := range []string{"snapshots/rm-1", "trees/new-" + id, "trees/rm-" + id, tree[len(d.root)+1:] +
		"/local.new", tree[len(d.root)+1:] + "/local.rm"} {
		path = filepath.Join(d.root, path)
		undeletable = append(undeletable, path)
		immutable.Dir(t, filepath.Join(path, "below"))
	}
	binds := filepath.Join(d.root, "binds.json")
	d.end(syscall.SIGKILL)
	if err := os.WriteFile(binds, []byte("[{"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := slices.Sorted(slices.Values(append(slices.Clone(undeletable), binds+".broken")))
	for range 2 {
		d.start()
		if got := leftoverPaths(status(t, d.root)); !slices.Equal(got, want) {
			t.Errorf("leftovers: %q, want %q", got, want)
		}
		reads(t, d, merged)
		shows(t, dir)
		d.end(syscall.SIGKILL)
	}
	d.start()
	text, doctor := run(t, "status", "--root", d.root).good(), run(t, "doctor", "--root", d.root).stdout
	for _, path := range want {
		if !strings.Contains(text, path) || !strings.Contains(doctor, path) {
			t.Errorf("status or doctor does not contain %q:\n%s\n%s", path, text, doctor)
		}
	}
	for _, path := range undeletable {
		immutable.Set(t, filepath.Join(path, "below"), false)
	}
	if err := errors.Join(syscall.Unmount(dir, 0), os.Remove(binds+".broken")); err != nil {
		t.Fatal(err)
	}
	d.end(syscall.SIGTERM)
	d.start()
	if left := status(t, d.root).Leftovers; len(left) > 0 {
		t.Errorf("leftovers that can be deleted: %+v, want none", left)
	}
}

// On a full disk a node starts, and serves the containers of the previous node.
func TestNodeStartsOnAFullDisk(t *testing.T) {
	for name, script := range map[string]string{
		"tmpfs": "mount -t tmpfs -o size=64M none $2",
		"ext4":  "truncate -s 200M $1 && mkfs.ext4 -q -F -m 0 $1 && mount -o loop $1 $2",
	} {
		t.Run(name, func(t *testing.T) { nodeStartsOnAFullDisk(t, script) })
	}
}

func nodeStartsOnAFullDisk(t *testing.T, script string) {
	base := socketdir.New(t)
	disk := filepath.Join(base, "disk")
	if out, err := exec.Command("sh", "-ec", "mkdir $2 && "+script, "sh", filepath.Join(base, "image"),
		disk).CombinedOutput(); err != nil {
		t.Fatalf("mount a disk: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	root := filepath.Join(disk, "node")
	d := startNode(t, root, "--address", filepath.Join(base, "s.sock"), "--disk-free-low", "0")
	dir, merged := used(t, d)
	chain := status(t, root).Binds[0].Chain
	d.end(syscall.SIGKILL)
	// The next node rewrites its list of user-facing mounts, which needs many blocks.
	lost := binds.Bind{Dir: t.TempDir(), Name: strings.Repeat("x", 1<<18), Chain: "sha256:" + strings.Repeat("a", 64),
		Lost: "a test"}
	text, err := json.Marshal([]binds.Bind{{Dir: dir, Name: "tools:1", Chain: chain}, lost})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "binds.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	fill(t, disk)
	for n := range 3 {
		d.start()
		if left := leftoverPaths(status(t, root)); n == 0 && !slices.Contains(left, filepath.Join(root, "binds.json")) {
			t.Errorf("leftovers: %q, want the list of user-facing mounts", left)
		}
		shows(t, dir)
		reads(t, d, merged)
		d.end(syscall.SIGKILL)
		fill(t, disk)
	}
	d.start()
	if err := os.Remove(filepath.Join(disk, "fill")); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{dir, lost.Dir} {
		run(t, "unmount", "--root", root, at).good()
	}
	if left := status(t, root).Leftovers; len(left) > 0 {
		t.Errorf("leftovers after space was freed: %+v, want none", left)
	}
}

// fill fills a disk completely.
func fill(t *testing.T, disk string) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(disk, "fill"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for size := 1 << 20; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = file.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
}
