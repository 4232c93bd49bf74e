//go:build e2e

package node

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
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

	"lighter/node/directory"
	"lighter/node/mount"
	"lighter/test/testkit/eventually"
	tars "lighter/test/testkit/tarball"
)

// startDirectory runs a node that shows the hub's images in a directory. If anything is mounted
// there when the node has ended, the test fails.
func startDirectory(t *testing.T, args ...string) (d *daemon, dir string) {
	t.Helper()
	dir = filepath.Join(openDir(t), "lighter")
	t.Cleanup(func() {
		if n := mountsOn(t, dir) + len(mountsBelow(t, dir)); n > 0 {
			t.Errorf("%d mounts are left on %s and below", n, dir)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return startNode(t, newRoot(t), append([]string{"--address", "", "--directory", dir}, args...)...), dir
}

// sh runs a shell command, whose $1 is dir, and returns its output. The command ends after a minute
// at most.
func sh(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "timeout", "60", "sh", "-ec", script, "sh", dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

// inDirectory returns the state of an image in the node's directory.
func inDirectory(t *testing.T, d *daemon, name string) (image directory.ImageStatus, ok bool) {
	t.Helper()
	for _, i := range status(t, d.root).Directory.Images {
		if i.Name == name {
			return i, true
		}
	}
	return image, false
}

// Listing the directory mounts nothing. An image is mounted when a user looks into it, and every
// user can read it.
func TestDirectory(t *testing.T) {
	d, dir := startDirectory(t)
	names := strings.Fields(sh(t, dir, "ls $1"))
	if !slices.Contains(names, "tools:1") || !slices.Contains(names, "both:1") {
		t.Errorf("ls: got %q, want tools:1 and both:1 among them", names)
	}
	sh(t, dir, `ls -l --color=always $1; ls -ld $1/*; find $1 -maxdepth 1; stat $1/tools:1; test -d $1/tools:1`)
	if s := status(t, d.root); len(s.Directory.Images)+len(s.Mounts) != 0 || s.Directory.Names < 2 {
		t.Errorf("after ls: got %+v and mounts %+v, want at least 2 names, and nothing mounted", s.Directory, s.Mounts)
	}
	image := filepath.Join(dir, "tools:1")
	if out := sh(t, image, "setpriv --reuid=65534 --regid=65534 --clear-groups cat $1/text"); out != "linux/amd64" {
		t.Errorf("text is %q, want linux/amd64", out)
	}
	shows(t, image)
	if n := mountsOn(t, image); n != 1 {
		t.Errorf("%d mounts on %s, want 1", n, image)
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(image, &stat); err != nil {
		t.Fatal(err)
	}
	if want := int64(unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV); stat.Flags&want != want ||
		stat.Type != unix.EROFS_SUPER_MAGIC_V1 {
		t.Errorf("the mount has type %#x and flags %#x, want EROFS, read-only, nosuid and nodev", stat.Type, stat.Flags)
	}
	if out := sh(t, filepath.Join(dir, "both:1"), "cd $1; cat text; ls"); !strings.HasPrefix(out, "linux/amd64") {
		t.Errorf("text of an image for several platforms is %q, want linux/amd64", out)
	}
	for _, missing := range []string{"nothing:1", "nothing", "tools", "tools:2", ".Trash", "a/b/c:1", "UPPER:1"} {
		if _, err := os.ReadFile(filepath.Join(dir, missing, "text")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: got %v, want that it does not exist", missing, err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "mine"), 0o700); !errors.Is(err, unix.EROFS) {
		t.Errorf("make a directory: got %v, want a read-only error", err)
	}
}

// A process that does not see the mounts of the node's namespace reads an image, too: as a user
// with a namespace of their own, whether the image is mounted before or not.
func TestDirectoryInNamespaces(t *testing.T) {
	_, dir := startDirectory(t)
	for range 2 { // not mounted before, and mounted in the node's namespace
		sh(t, dir, `exec setpriv --reuid=65534 --regid=65534 --clear-groups \
			unshare -Urm --propagation private sh -ec '
			test "$(cat $1/tools:1/text)" = linux/amd64; ls $1/tools:1 | grep large
			cd $1/tools:1; test $(wc -c <large) = 5242880; test "$(id -u)" = 0' sh "$1"`)
	}
	// A bind of a name, in a namespace that is cut off.
	sh(t, dir, `exec unshare -Urm --propagation private sh -ec '
		mount --bind $1/both:1 /mnt; test "$(cat /mnt/text)" = linux/amd64; ls /mnt/large' sh "$1"`)
}

// bubblewrap takes an image that is not mounted yet as the root of a user's container. The
// container has the tree itself: it reads on after the image was unmounted from its name, and after
// the node was killed.
func TestDirectoryIsTheRootOfBubblewrap(t *testing.T) {
	entries := []tars.Item{tars.File("large", string(large))}
	for name, file := range map[string]string{"sleep": "/usr/bin/sleep", "lib64/ld-linux-x86-64.so.2": "",
		"lib/x86_64-linux-gnu/libc.so.6": ""} {
		program, err := os.ReadFile(cmp.Or(file, "/"+name))
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, tars.File(name, string(program), tars.Mode(0o755)))
	}
	addLayer(t, tars.Of(entries...))
	d, dir := startDirectory(t, "--directory-idle", "1s")
	cmd := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
		"bwrap", "--unshare-user", "--info-fd", "1", "--ro-bind", filepath.Join(dir, "program:1"), "/",
		"/sleep", "infinity")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		Child int `json:"child-pid"`
	}
	err = json.NewDecoder(out).Decode(&info)
	t.Cleanup(func() {
		if info.Child > 0 {
			_ = unix.Kill(info.Child, unix.SIGKILL)
		}
		_ = cmd.Wait() // it ends with the program in the container
	})
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join("/proc", strconv.Itoa(info.Child), "root")
	eventually.Holds(t, "the program in the container", func() bool {
		path, err := os.Readlink(filepath.Join(filepath.Dir(root), "exe"))
		return err == nil && path == "/sleep"
	})
	var stat unix.Statfs_t
	if err := unix.Statfs(root, &stat); err != nil || stat.Type != unix.EROFS_SUPER_MAGIC_V1 {
		t.Errorf("the container's root has type %#x (%v), want EROFS", stat.Type, err)
	}
	shows(t, filepath.Join(dir, "tools:1"))
	eventually.Holds(t, "an image that was used later to be unmounted", func() bool {
		i, ok := inDirectory(t, d, "tools:1")
		return ok && !i.Mounted
	})
	d.end(syscall.SIGKILL)
	d.start()
	if got, err := os.ReadFile(filepath.Join(root, "large")); err != nil || !bytes.Equal(got, large) {
		t.Errorf("the container reads %d bytes (%v), want %d", len(got), err, len(large))
	}
}

// A container in a mount namespace that is cut off keeps its image: the node unmounts the image
// from its name, where nobody uses it, and goes on to serve it.
func TestDirectoryKeepsTheImagesOfContainers(t *testing.T) {
	d, dir := startDirectory(t, "--directory-idle", "1s")
	shows(t, filepath.Join(dir, "both:1"))
	if _, err := os.ReadFile(filepath.Join(dir, "tools:1", "text")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-ec",
		"mount --bind $1 /mnt; ls /mnt/large; read line || true; cat /mnt/large | wc -c",
		"sh", filepath.Join(dir, "tools:1"))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "both trees to be unmounted", func() bool {
		return len(mountsBelow(t, d.root)) == 1
	}) // devices/
	eventually.Holds(t, "the end of the device that nobody uses", func() bool { return devices(t, d) == 1 })
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil || !strings.HasSuffix(out.String(), "\n5242880\n") {
		t.Errorf("the container wrote %q (%v), want the size of all of the file", out.String(), err)
	}
	eventually.Holds(t, "the end of the container's device", func() bool { return devices(t, d) == 0 })
}

// devices returns the number of devices that a node serves.
func devices(t *testing.T, d *daemon) int {
	t.Helper()
	entries, err := os.ReadDir(mount.Devices(d.root))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// An image that nobody uses is unmounted. A process that works in it keeps it.
func TestDirectoryUnmountsIdleImages(t *testing.T) {
	d, dir := startDirectory(t, "--directory-idle", "1s")
	image, busy := filepath.Join(dir, "tools:1"), filepath.Join(dir, "both:1")
	shows(t, image)
	sitting := sit(t, busy)
	isMounted := func(name string) bool {
		i, _ := inDirectory(t, d, name)
		return i.Mounted
	}
	eventually.Holds(t, "the idle image to be unmounted", func() bool { return !isMounted("tools:1") })
	if n := mountsOn(t, image); n != 0 {
		t.Errorf("%d mounts on the idle image, want none", n)
	}
	sitting.reads(t)
	if !isMounted("both:1") {
		t.Error("the image in use was unmounted")
	}
	sitting.end()
	eventually.Holds(t, "both devices to end", func() bool { return devices(t, d) == 0 })
	shows(t, image) // again
	shows(t, busy)
}

// sitter is a process whose working directory is an image.
type sitter struct{ cmd *exec.Cmd }

func sit(t *testing.T, dir string) sitter {
	t.Helper()
	cmd := exec.Command("sleep", "infinity")
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := sitter{cmd}
	t.Cleanup(s.end)
	return s
}

func (s sitter) end() {
	_ = s.cmd.Process.Kill() // it may have ended
	_ = s.cmd.Wait()
}

// reads reads a file of the image, relative to the process's working directory. No page of the file
// is in memory.
func (s sitter) reads(t *testing.T) {
	t.Helper()
	path := filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid), "cwd", "large")
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, large) {
		t.Errorf("a process that works in an image reads %d bytes (%v), want %d", len(got), err, len(large))
	}
}

// A process that works in an image reads on, however the node ends. The next node shows the
// directory again, also without a hub.
func TestDirectoryAfterTheNodeHasEnded(t *testing.T) {
	d, dir := startDirectory(t)
	image := filepath.Join(dir, "tools:1")
	sitting := sit(t, image)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		d.end(signal)
		d.start()
		sitting.reads(t)
		shows(t, image)
		if n := mountsOn(t, dir); n != 1 {
			t.Errorf("after %v: %d mounts on %s, want 1", signal, n, dir)
		}
	}
	d.end(syscall.SIGKILL)
	d.args = append(d.args, "--hub", "http://127.0.0.1:1")
	d.start()
	sitting.reads(t)
	shows(t, image)
	if names := strings.Fields(sh(t, dir, "ls $1")); !slices.Equal(names, []string{"tools:1"}) {
		t.Errorf("without a hub: ls shows %q, want the image that the node has", names)
	}
	began := time.Now()
	if _, err := os.ReadFile(filepath.Join(dir, "both:1", "text")); !errors.Is(err, unix.EIO) {
		t.Errorf("an image that only the hub has: got %v after %v, want EIO", err, time.Since(began))
	}
	// A node that shows no directory removes the mounts of its predecessor.
	sitting.end()
	d.end(syscall.SIGKILL)
	d.args = []string{"--address", ""}
	d.start()
	if n := mountsOn(t, dir); n != 0 || status(t, d.root).Directory != nil {
		t.Errorf("%d mounts on %s, want none", n, dir)
	}
}

// `lighter release` removes the directory of a node that was killed.
func TestDirectoryIsReleased(t *testing.T) {
	d, dir := startDirectory(t)
	shows(t, filepath.Join(dir, "tools:1"))
	d.end(syscall.SIGKILL)
	run(t, "release", "--root", d.root).good()
	if n := mountsOn(t, dir); n != 0 {
		t.Errorf("%d mounts on %s, want none", n, dir)
	}
}

// When a name gets another image, the next look shows it. A process that works in the previous one
// keeps that one.
func TestDirectoryShowsTheNewImageOfAName(t *testing.T) {
	addProgram(t, []byte("one"))
	d, dir := startDirectory(t)
	file := filepath.Join(dir, "program:1", "lighter")
	is := func(path, want string) bool {
		got, err := os.ReadFile(path)
		return err == nil && string(got) == want
	}
	if !is(file, "one") {
		t.Error("the first image is not shown")
	}
	sitting := sit(t, filepath.Dir(file))
	addProgram(t, []byte("two"))
	eventually.Holds(t, "the second image", func() bool { return is(file, "two") })
	if !is(filepath.Join("/proc", strconv.Itoa(sitting.cmd.Process.Pid), "cwd", "lighter"), "one") {
		t.Error("a process does not have its image any more")
	}
	run(t, "rm", "program:1").good()
	eventually.Holds(t, "the removed image to disappear", func() bool {
		_, err := os.Stat(filepath.Dir(file))
		return errors.Is(err, os.ErrNotExist)
	})
	if !is(filepath.Join("/proc", strconv.Itoa(sitting.cmd.Process.Pid), "cwd", "lighter"), "one") {
		t.Error("a process does not have its image any more")
	}
	if s := status(t, d.root); len(s.Directory.Images) != 2 {
		t.Errorf("images of the directory: %+v, want the two that were used", s.Directory.Images)
	}
}

// A directory that is no place for images is refused, or reported: nothing of another program is
// covered.
func TestDirectoryOfOthers(t *testing.T) {
	root, dir := newRoot(t), t.TempDir()
	for flag, word := range map[string]string{"relative": "absolute", "/": "alone", root + "/x": "separate"} {
		run(t, "node", "--root", root, "--address", "", "--directory", flag).bad(2, word)
	}
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := startNode(t, root, "--address", "", "--directory", dir)
	if s := status(t, d.root); !strings.Contains(s.Directory.Hidden, "not empty") || mountsOn(t, dir) != 0 {
		t.Errorf("a directory with files: got %+v, want that it is not empty", s.Directory)
	}
}
