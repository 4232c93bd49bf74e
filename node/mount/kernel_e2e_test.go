//go:build e2e

package mount

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// makeImage makes the metadata image and the device of a tree with a device node and a set-user-ID
// program, in a directory whose name has a blank.
func makeImage(t *testing.T) (metadata, device string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "with a blank")
	source := filepath.Join(dir, "source")
	metadata, device = filepath.Join(dir, "metadata"), filepath.Join(dir, "device")
	id, err := os.ReadFile("/usr/bin/id")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		os.MkdirAll(source, 0o755),
		os.WriteFile(filepath.Join(source, "id"), id, 0o755),
		os.Chmod(filepath.Join(source, "id"), 0o755|os.ModeSetuid),
		unix.Mknod(filepath.Join(source, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
	); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("mkfs.erofs", "--quiet", "--blobdev="+device, "--chunksize=16777216", metadata,
		source).CombinedOutput()
	if err != nil {
		t.Fatalf("mkfs.erofs: %v\n%s", err, out)
	}
	info, err := os.Stat(device)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(device, (info.Size()+4095)/4096*4096); err != nil {
		t.Fatal(err)
	}
	return metadata, device
}

// mountPoint makes a directory. When the test ends, everything on it is unmounted.
func mountPoint(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "mounted here")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// In a bind mount and in an overlay of a tree, device nodes and set-user-ID programs work as in an
// unpacked tree. The tree is read-only.
func TestMountErofs(t *testing.T) {
	for _, mode := range []Mode{File, Loop} {
		t.Run(string(mode), func(t *testing.T) { testMountErofs(t, mode) })
	}
}

func testMountErofs(t *testing.T, mode Mode) {
	metadata, device := makeImage(t)
	dir, bound, merged := mountPoint(t), mountPoint(t), mountPoint(t)
	got, err := kernel{mode, unix.Mount}.mountErofs(metadata, device, dir)
	if err != nil || got != mode {
		t.Fatalf("mounted in mode %q, error %v; want mode %q", got, err, mode)
	}
	if err := unix.Mount(dir, bound, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	layers := t.TempDir()
	upper, work := filepath.Join(layers, "upper"), filepath.Join(layers, "work")
	if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("overlay", merged, "overlay", 0,
		"lowerdir="+dir+",upperdir="+upper+",workdir="+work); err != nil {
		t.Fatal(err)
	}
	for _, tree := range []string{bound, merged} {
		if err := os.WriteFile(filepath.Join(tree, "null"), []byte("x"), 0); err != nil {
			t.Errorf("write to a device node: got %v, want no error", err)
		}
		out, err := exec.Command("setpriv", "--reuid=1000", "--clear-groups", filepath.Join(tree, "id"),
			"-u").CombinedOutput()
		if err != nil || string(out) != "0\n" {
			t.Errorf("set-user-ID program: got user ID %q, %v; want 0", out, err)
		}
		want, _ := os.ReadFile("/usr/bin/id")
		if got, err := os.ReadFile(filepath.Join(tree, "id")); err != nil || string(got) != string(want) {
			t.Errorf("read %d bytes of the program, %v; want %d", len(got), err, len(want))
		}
	}
	if err := os.WriteFile(filepath.Join(bound, "new"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to the tree: got %v, want EROFS", err)
	}
	mounts, err := mountPoints(filepath.Dir(dir))
	if err != nil || len(mounts) != 1 || mounts[dir].source != metadata || mounts[dir].mode != mode {
		t.Errorf("got mounts %v, %v; want one of %s in mode %s", mounts, err, metadata, mode)
	}
}

// unmount unmounts all mounts on a directory. It fails if one is in use, and succeeds if there is
// no mount.
func TestUnmount(t *testing.T) {
	metadata, device := makeImage(t)
	dir := mountPoint(t)
	for range 2 { // one mount over the other, as after a crash
		if _, err := (kernel{Auto, unix.Mount}).mountErofs(metadata, device, dir); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.Open(filepath.Join(dir, "id"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unmount(dir); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), dir) {
		t.Errorf("unmount while a file is open: got %v, want EBUSY and the directory", err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := unmount(dir); err != nil {
			t.Error(err)
		}
	}
	if err := unmount(filepath.Join(dir, "not there")); err != nil {
		t.Error(err)
	}
	if mounts, err := mountPoints(dir); err != nil || len(mounts) != 0 {
		t.Errorf("after unmount: got mounts %v, %v; want none", mounts, err)
	}
}

// If a tree cannot be mounted, the error names the metadata image and the cause.
func TestMountErofsSaysWhatIsWrong(t *testing.T) {
	metadata, device := makeImage(t)
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	tmpfs := mountPoint(t)
	inMemory := filepath.Join(tmpfs, "metadata")
	if err := unix.Mount("tmpfs", tmpfs, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", metadata, inMemory).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
	for _, test := range []struct{ metadata, device, dir, want string }{
		{inMemory, device, mountPoint(t), "ordinary local file system"},
		{garbage, device, mountPoint(t), "its log says why"},
		{metadata, device + ",ro", mountPoint(t), "comma"},
		{metadata, device + "-missing", mountPoint(t), "no such file"},
		{metadata, device, "/does/not/exist", "/does/not/exist"},
	} {
		_, err := kernel{File, unix.Mount}.mountErofs(test.metadata, test.device, test.dir)
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), test.metadata) {
			t.Errorf("got error %v; want %q and %q in it", err, test.want, test.metadata)
		}
	}
}
