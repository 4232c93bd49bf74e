//go:build e2e

package node

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"lighter/node/report"
	"lighter/test/testkit/socketdir"
)

// readable returns the paths that the user nobody can read, list or connect to.
func readable(t *testing.T, paths []string) []string {
	t.Helper()
	const try = `while IFS= read -r path; do
		if head -c 1 "$path" || ls "$path/" || test -S "$path" -a -w "$path"; then printf '%s\n' "$path" >&3; fi
	done 3>&1 >/dev/null 2>&1`
	cmd := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", try)
	cmd.Stdin = strings.NewReader(strings.Join(paths, "\n") + "\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

// letIn makes all parents of path searchable for all users, so that only the permissions of path
// and below count.
func letIn(t *testing.T, path string) {
	t.Helper()
	for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm()&1 == 0 {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// openDir makes a directory that all users can access.
func openDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "open")
	letIn(t, dir)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// pathsOf lists all files below a node's root. It checks that only root has permissions for them.
// Files of mounted images may have other permissions.
func pathsOf(t *testing.T, root string) (paths []string) {
	t.Helper()
	trees := filepath.Join(root, "mounts") + "/"
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		paths = append(paths, path)
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 && path != root && !strings.HasPrefix(path, trees) {
			t.Errorf("%s has mode %v, want permissions only for root", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// Users read an image's files only through its mounts. Only root can access the node's files
// (device, cache, metadata image) and sockets, on any path.
func TestOthersReadNothingOfTheNode(t *testing.T) {
	address := filepath.Join(socketdir.New(t), "run", "lighter.sock")
	d := startNode(t, newRoot(t), "--address", address)
	letIn(t, d.root)
	dir := openDir(t)
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	shows(t, dir)
	paths := append(pathsOf(t, d.root), address)
	if len(paths) < 20 {
		t.Fatalf("the node has the files %q, want at least 20", paths)
	}
	process := fmt.Sprintf("/proc/%d", d.cmd.Process.Pid)
	for _, path := range paths[:len(paths):len(paths)] {
		paths = append(paths, process+"/root"+path)
	}
	open, err := filepath.Glob(process + "/fd/*")
	if err != nil || len(open) < 10 {
		t.Fatalf("open files of the node: %q (%v), want at least 10", open, err)
	}
	paths = append(append(paths, open...), process+"/mem", process+"/environ", process+"/cwd")
	permitted := []string{filepath.Join(dir, "text"), "/etc/passwd"} // control: files that all users may read
	if got := readable(t, append(permitted, paths...)); strings.Join(got, " ") != strings.Join(permitted, " ") {
		t.Errorf("other users can read %q, want %q", got, permitted)
	}
	t.Run("past the root", func(t *testing.T) { pastTheRoot(t, d) })
	t.Run("by mounting", func(t *testing.T) { byMounting(t, d.root, status(t, d.root).Mounts[0]) })
	run(t, "unmount", "--root", d.root, dir).good()
}

// The files stay private if the permissions of the root directory are lost, or if a part of it is
// mounted elsewhere.
func pastTheRoot(t *testing.T, d *daemon) {
	if err := os.Chmod(d.root, 0o711); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(d.root, 0o700)
	var paths []string
	for _, path := range pathsOf(t, d.root) {
		if path != d.root {
			paths = append(paths, path)
		}
	}
	devices := openDir(t)
	if err := unix.Mount(filepath.Join(d.root, "devices"), devices, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(devices, unix.MNT_DETACH)
	tree := status(t, d.root).Mounts[0].Tree.String()
	if _, err := os.ReadFile(filepath.Join(devices, tree)); err != nil {
		t.Fatalf("root cannot read a device: %v", err)
	}
	paths = append(paths, devices, filepath.Join(devices, tree))
	if got := readable(t, append(paths, "/etc/passwd")); strings.Join(got, " ") != "/etc/passwd" {
		t.Errorf("other users can read %q, want only /etc/passwd", got)
	}
}

// A user who is root in a new user namespace can mount file systems, but nothing of the node's.
func byMounting(t *testing.T, root string, m report.MountStatus) {
	at := openDir(t)
	metadata := filepath.Join(root, "trees", m.Tree.String(), "metadata")
	for name, mount := range map[string]string{
		"an empty tmpfs": "mount -t tmpfs tmpfs " + at,
		"the tree":       "mount --bind " + m.Dir + " " + at,
		"an overlay":     "mount -t overlay overlay -o lowerdir=" + m.Dir + ":" + at + " " + at,
		"the image": "mount -t erofs -o device=" + filepath.Join(root, "devices", m.Tree.String()) + " " +
			metadata + " " + at,
		"the device": "mount --bind " + filepath.Join(root, "devices") + " " + at,
	} {
		cmd := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "--user",
			"--map-root-user", "--mount", "sh", "-c", mount)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		out, err := cmd.CombinedOutput()
		if (err == nil) != (name == "an empty tmpfs") {
			t.Errorf("a user mounts %s: %v, want success only for a tmpfs: %s", name, err, out)
		}
	}
}
