//go:build e2e

package mount

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

// loopsOn lists the loop devices of files below dir.
func loopsOn(t *testing.T, dir string) (loops []string) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(b), dir+"/") {
			loops = append(loops, file)
		}
	}
	return loops
}

// Loop devices are freed when the tree is unmounted, and when mounting fails.
func TestLoopDevicesAreFreed(t *testing.T) {
	metadata, device := makeImage(t)
	dir, below := mountPoint(t), filepath.Dir(metadata)
	k := kernel{Loop, unix.Mount}
	if _, err := k.mountErofs(metadata, device, dir); err != nil {
		t.Fatal(err)
	}
	if loops := loopsOn(t, below); len(loops) != 2 {
		t.Errorf("loop devices %v, want two", loops)
	}
	for _, file := range loopsOn(t, below) {
		block := filepath.Dir(filepath.Dir(file))
		for name, want := range map[string]string{"queue/read_ahead_kb": "128", "loop/dio": "1", "ro": "1"} {
			if got, err := os.ReadFile(filepath.Join(block, name)); err != nil ||
				strings.TrimSpace(string(got)) != want {
				t.Errorf("%s/%s: got %q, %v; want %s", block, name, got, err, want)
			}
		}
	}
	if err := unmount(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := k.mountErofs(device, metadata, dir); err == nil {
		t.Error("a device was mounted as a metadata image, want an error")
	}
	if _, err := k.mountErofs(metadata, device+"-missing", dir); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a missing device: got %v, want %v", err, unix.ENOENT)
	}
	if loops := loopsOn(t, below); len(loops) != 0 {
		t.Errorf("got loop devices %v, want all freed", loops)
	}
}

// Concurrent callers get different loop devices.
func TestLoopDevicesForAll(t *testing.T) {
	metadata, _ := makeImage(t)
	var mu sync.Mutex
	fds := map[string]int{}
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			device, fd, err := attach(metadata)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			fds[device] = fd
		})
	}
	all.Wait()
	if loops := loopsOn(t, filepath.Dir(metadata)); len(fds) != 16 || len(loops) != 16 {
		t.Errorf("the kernel has loop devices %v, and attach returned %v; want 16 each", loops, fds)
	}
	for device, fd := range fds {
		if got := backing(device); got != metadata {
			t.Errorf("%s is a loop device of %s, want %s", device, got, metadata)
		}
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	}
}

// Mode Auto uses loop devices if the kernel cannot mount the files: if they are on tmpfs, or if the
// kernel mounts only block devices.
func TestAutoUsesLoopDevices(t *testing.T) {
	metadata, device := makeImage(t)
	tmpfs := mountPoint(t)
	if err := unix.Mount("tmpfs", tmpfs, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", metadata, device, tmpfs).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
	oldKernel := func(source, target, fstype string, flags uintptr, data string) error {
		if !strings.HasPrefix(source, "/dev/") {
			return unix.ENOTBLK
		}
		return unix.Mount(source, target, fstype, flags, data)
	}
	for _, test := range []struct {
		kernel           kernel
		metadata, device string
		want             Mode
	}{
		{kernel{Auto, unix.Mount}, metadata, device, File},
		{kernel{Auto, unix.Mount}, filepath.Join(tmpfs, "metadata"), filepath.Join(tmpfs, "device"), Loop},
		{kernel{Auto, oldKernel}, metadata, device, Loop},
	} {
		dir := mountPoint(t)
		got, err := test.kernel.mountErofs(test.metadata, test.device, dir)
		if err != nil || got != test.want {
			t.Errorf("%s: got mode %q, %v; want %q", test.metadata, got, err, test.want)
		}
		if _, err := os.ReadFile(filepath.Join(dir, "id")); err != nil {
			t.Error(err)
		}
		if err := unmount(dir); err != nil { // before tmpfs is unmounted
			t.Error(err)
		}
	}
}

// probing returns a Mounts without trees, for tests of Probe and CheckMountable.
func probing(root string, k kernel, log *slog.Logger) *Mounts {
	m := openMounts(root, nil)
	m.kernel, m.log = k, log
	return m
}

// Probe finds out why trees cannot be mounted, and leaves nothing behind.
func TestProbe(t *testing.T) {
	answer := func(err error) func(string, string, string, uintptr, string) error {
		return func(string, string, string, uintptr, string) error { return err }
	}
	for _, test := range []struct {
		kernel kernel
		want   string
	}{
		{kernel{Auto, unix.Mount}, ""},
		{kernel{File, unix.Mount}, ""},
		{kernel{Loop, unix.Mount}, ""},
		{kernel{None, unix.Mount}, "mount_mode is none"},
		{kernel{Auto, answer(unix.ENODEV)}, "this kernel has no EROFS"},
		{kernel{File, answer(unix.ENOTBLK)}, "from block devices only"},
		{kernel{Auto, answer(unix.ENOTBLK)}, "behind loop devices"},
	} {
		mounts := probing(t.TempDir(), test.kernel, slog.New(slog.DiscardHandler))
		mounts.Probe()
		err := mounts.CheckMountable()
		if test.want == "" && err != nil || test.want != "" && (err == nil ||
			!strings.Contains(err.Error(), test.want)) {
			t.Errorf("mode %s: got error %v, want %q", test.kernel.mode, err, test.want)
		}
		if entries, err := os.ReadDir(mounts.root); err != nil || len(entries) != 0 ||
			len(loopsOn(t, mounts.root)) != 0 {
			t.Errorf("after the probe: files %v, loop devices %v, %v; want none", entries, loopsOn(t, mounts.root), err)
		}
	}
}

// If a node is killed while it probes, the next Probe or Abandon unmounts and removes the empty
// tree.
func TestKilledWhileProbing(t *testing.T) {
	metadata, device := makeImage(t)
	for name, end := range map[string]func(root string) error{
		"next": func(root string) error {
			mounts := probing(root, kernel{Auto, unix.Mount}, slog.New(slog.DiscardHandler))
			mounts.Probe()
			return errors.Join(mounts.CheckMountable(), os.Remove(root))
		},
		"removed": Abandon,
	} {
		root := filepath.Join(t.TempDir(), "root")
		if err := os.MkdirAll(probePoint(root), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := (kernel{Loop, unix.Mount}).mountErofs(metadata, device, probePoint(root)); err != nil {
			t.Fatal(err)
		}
		if err := end(root); err != nil {
			t.Errorf("%s: got %v, want no error", name, err)
		}
		if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: stat of the root: got %v, want %v", name, err, os.ErrNotExist)
		}
	}
}

// A failed probe is repeated after probePause at the earliest. In mode None it is not repeated.
func TestProbeAgain(t *testing.T) {
	for _, failure := range []error{unix.ENOMEM, unix.EBUSY, unix.EMFILE, unix.ENODEV} {
		synctest.Test(t, func(t *testing.T) {
			tried, fails := 0, true
			k := kernel{Auto, func(source, target, fstype string, flags uintptr, data string) error {
				if tried++; fails {
					return failure
				}
				return unix.Mount(source, target, fstype, flags, data)
			}}
			var logged bytes.Buffer
			mounts := probing(t.TempDir(), k, slog.New(slog.NewTextHandler(&logged, nil)))
			mounts.Probe()
			time.Sleep(probePause - time.Nanosecond)
			if err := mounts.CheckMountable(); err == nil || tried != 1 {
				t.Errorf("%v, before probePause: got error %v after %d attempts, want an error after 1", failure, err,
					tried)
			}
			time.Sleep(time.Nanosecond)
			if _, err := mounts.Mount(t.Context(), chunk.ID{}); err == nil || tried != 2 ||
				strings.Count(logged.String(), "no image will be lazy") != 1 {
				t.Errorf("%v, after probePause: got error %v after %d attempts, want one after 2, logged once:\n%s",
					failure, err, tried, &logged)
			}
			fails = false
			time.Sleep(probePause)
			if err := mounts.CheckMountable(); err != nil || tried != 3 || !strings.Contains(logged.String(),
				"trees can be mounted now") {
				t.Errorf("without %v: got error %v after %d attempts, want none after 3, and a message:\n%s", failure,
					err, tried, &logged)
			}
			time.Sleep(probePause)
			if err := mounts.CheckMountable(); err != nil || tried != 3 {
				t.Errorf("after a successful probe: got error %v after %d attempts, want none after 3", err, tried)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		mounts := probing(t.TempDir(), kernel{None, nil}, slog.New(slog.DiscardHandler))
		mounts.Probe()
		time.Sleep(probePause)
		if err := mounts.CheckMountable(); !errors.Is(err, errModeNone) {
			t.Errorf("mode none: got %v, want %v", err, errModeNone)
		}
	})
}

// If no loop device can be made, the error says what is missing, and no descriptor and no loop
// device is left.
func TestWithoutLoopDevices(t *testing.T) {
	metadata, device := makeImage(t)
	k := kernel{Loop, unix.Mount}
	try := func(want string) {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "mount")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		before := descriptors(t)
		if _, err := k.mountErofs(metadata, device, dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q in it", err, want)
		}
		if after := descriptors(t); after != before {
			t.Errorf("%d descriptors are open afterwards, want %d as before", after, before)
		}
		if loops := loopsOn(t, filepath.Dir(metadata)); len(loops) != 0 {
			t.Errorf("got loop devices %v, want all freed", loops)
		}
	}
	hide := func(path string) {
		if err := unix.Mount("tmpfs", path, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(path, 0) })
	}
	hide("/dev")
	try("load the module loop")
	if err := unix.Mknod("/dev/loop-control", unix.S_IFCHR|0o600, int(unix.Mkdev(10, 237))); err != nil {
		t.Fatal(err)
	}
	try("the host's /dev is needed")
}

// descriptors returns the number of open descriptors of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}
