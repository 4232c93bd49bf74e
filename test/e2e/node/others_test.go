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
)

// readable returns those of the paths that nobody, the user, can read, list or
// connect to.
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

// letIn lets everybody go as far as path, so that nothing else stops them.
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

// openDir makes a directory for everybody.
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

// pathsOf lists all that a node has, and what of each is the image's.
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
			t.Errorf("%s: mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// An image's files are read through its mounts. What the node makes them of, the
// device, the cache, the metadata image, and its sockets, is root's alone, whichever
// way one goes there.
func TestOthersReadNothingOfTheNode(t *testing.T) {
	address := filepath.Join(shortDir(t), "run", "lighter.sock")
	d := startNode(t, newRoot(t), "--address", address)
	letIn(t, d.root)
	dir := openDir(t)
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	shows(t, dir)
	paths := append(pathsOf(t, d.root), address)
	if len(paths) < 20 {
		t.Fatalf("only %q are there", paths)
	}
	process := fmt.Sprintf("/proc/%d", d.cmd.Process.Pid)
	for _, path := range paths[:len(paths):len(paths)] {
		paths = append(paths, process+"/root"+path)
	}
	open, err := filepath.Glob(process + "/fd/*")
	if err != nil || len(open) < 10 {
		t.Fatalf("the node has open: %q, %v", open, err)
	}
	paths = append(append(paths, open...), process+"/mem", process+"/environ", process+"/cwd")
	open2 := []string{filepath.Join(dir, "text"), "/etc/passwd"} // what they may read, to see that they can
	if got := readable(t, append(open2, paths...)); strings.Join(got, " ") != strings.Join(open2, " ") {
		t.Errorf("others can read %q", got)
	}
	t.Run("past the root", func(t *testing.T) { pastTheRoot(t, d) })
	t.Run("by mounting", func(t *testing.T) { byMounting(t, d.root, status(t, d.root).Mounts[0]) })
	run(t, "unmount", "--root", d.root, dir).good()
}

// Even where the root's permissions have been lost, or a part of it is mounted
// elsewhere, the parts are root's.
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
		t.Errorf("others can read %q", got)
	}
}

// Whoever makes a user namespace is root in it, and may mount; nothing of the
// node's.
func byMounting(t *testing.T, root string, m report.MountStatus) {
	at := openDir(t)
	metadata := filepath.Join(root, "trees", m.Tree.String(), "metadata")
	for name, mount := range map[string]string{
		"nothing of the node's": "mount -t tmpfs tmpfs " + at,
		"the tree":              "mount --bind " + m.Dir + " " + at,
		"an overlay":            "mount -t overlay overlay -o lowerdir=" + m.Dir + ":" + at + " " + at,
		"the image": "mount -t erofs -o device=" + filepath.Join(root, "devices", m.Tree.String()) + " " +
			metadata + " " + at,
		"the device": "mount --bind " + filepath.Join(root, "devices") + " " + at,
	} {
		cmd := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "--user",
			"--map-root-user", "--mount", "sh", "-c", mount)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		out, err := cmd.CombinedOutput()
		if (err == nil) != (name == "nothing of the node's") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}
