//go:build e2e

package node

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/node/control"
	"lighter/node/imagecache"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/site"
)

// window returns a schedule that begins in a number of hours and lasts two hours.
func window(hours int) string {
	from := time.Now().Add(time.Duration(hours) * time.Hour)
	return from.Format("15:04") + "-" + from.Add(2*time.Hour).Format("15:04")
}

// localFiles lists the files of finished and unfinished local devices below a root.
func localFiles(t *testing.T, root string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, "trees/*/local*/*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// awaitLocal waits for the only local device below the node's root, and returns its path.
func awaitLocal(t *testing.T, d *daemon) (device string) {
	t.Helper()
	eventually.Holds(t, "a local device", func() bool {
		found, _ := filepath.Glob(filepath.Join(d.root, "trees/*/local/device"))
		if len(found) == 1 {
			device = found[0]
		}
		return device != ""
	})
	return device
}

// A mounted image is fetched completely: within the schedule, and no faster than the rate. After a
// kill, the next node fetches only what is missing.
func TestImageIsCompleted(t *testing.T) {
	d := startNode(t, newRoot(t), "--address", "", "--complete", "--complete-rate", "2MiB", "--complete-schedule",
		window(3))
	dir := t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	eventually.Holds(t, "the reason for waiting", func() bool {
		return strings.Contains(status(t, d.root).Completion.Waits,
			"schedule")
	})
	if text := run(t, "status", "--root", d.root, "tools:1").good(); !strings.Contains(text, "waits: the schedule is") {
		t.Errorf("the status does not say that the completion waits for the schedule:\n%s", text)
	}
	if s := status(t, d.root); s.Fetched.Requests > 0 || s.Cache.Chunks > 0 {
		t.Errorf("fetched outside of the schedule: %+v, want nothing", s.Fetched)
	}
	d.end(syscall.SIGKILL)

	d.args[len(d.args)-1] = window(-1)
	inSchedule := d.args
	d.args = append(slices.Clone(inSchedule), "--hub", "http://127.0.0.1:9") // no hub listens there
	d.start()
	eventually.Holds(t, "a failure of the completion", func() bool { return status(t, d.root).Completion.Failed != "" })
	d.end(syscall.SIGKILL)

	d.args = inSchedule
	begun := time.Now()
	d.start()
	eventually.Holds(t, "a part of the image", func() bool { return status(t, d.root).Completion.Fetched > 1<<20 })
	d.end(syscall.SIGKILL)
	d.start()
	whole := func() bool {
		s := status(t, d.root).Completion
		images, err := control.New(d.root).Images(t.Context(), "tools:1")
		if err != nil {
			t.Fatal(err)
		}
		content := images[0].Content
		return s.Fetched > 0 && content.CachedBytes == content.Bytes && content.Bytes >= int64(len(large))
	}
	eventually.Holds(t, "the whole image", whole)
	if took := time.Since(begun); took < 1500*time.Millisecond { // 5 MiB at 2 MiB/s, minus the burst
		t.Errorf("the image was complete after %s, want at least 1.5s at this rate", took)
	}
	if again := status(t, d.root).Completion.Fetched; again > int64(len(large))-1<<19 {
		t.Errorf("fetched %d bytes after the kill, want at most the missing %d", again, len(large)-1<<19)
	}
	if left := localFiles(t, d.root); len(left) > 0 {
		t.Errorf("local devices without --local-device: %v, want none", left)
	}
	d.end(syscall.SIGKILL)
	d.args = append(d.args, "--local-device") // it is made after the node has checked that the image is complete
	d.start()
	awaitLocal(t, d)
	if s := status(t, d.root); s.Fetched.Requests > 0 {
		t.Errorf("fetched although all chunks are cached: %+v, want nothing", s.Fetched)
	}
	run(t, "unmount", "--root", d.root, dir).good()
}

// Once an image is completely cached, its next mount reads a local device and works without a node.
// The next node uses the local device, too. While a start is recorded, a new mount reads the node's
// device. So does a new mount after the scrub has found flipped bits in the local device.
func TestLocalDevice(t *testing.T) {
	for _, mode := range []string{"file", "loop"} {
		t.Run(mode, func(t *testing.T) {
			d := startNode(t, newRoot(t), "--address", "", "--complete", "--local-device", "--mount-mode", mode)
			served, local, again := t.TempDir(), t.TempDir(), t.TempDir()
			run(t, "mount", "--root", d.root, "tools:1", served).good()
			device := awaitLocal(t, d)
			if m := status(t, d.root).Mounts[0]; m.Local {
				t.Errorf("the mount from before the local device: %+v, want one of the node's device", m)
			}
			run(t, "mount", "--root", d.root, "tools:1", local).good()
			before := status(t, d.root).Mounts[0]
			if !before.Local || string(before.Mode) != mode {
				t.Errorf("a new mount: %+v, want one of the local device with mode %s", before, mode)
			}
			if err := site.DropCaches(); err != nil {
				t.Fatal(err)
			}
			shows(t, local)
			if m := status(t, d.root).Mounts[0]; m.Device.Faults != before.Device.Faults {
				t.Errorf("reads of the local device caused %d faults, want none", m.Device.Faults-before.Device.Faults)
			}
			if text := run(t, "status", "--root", d.root, "tools:1").good(); !strings.Contains(text, "mode local") ||
				!strings.Contains(text, "without the node") {
				t.Errorf("the status does not say that the mount reads a local device:\n%s", text)
			}
			shows(t, served)

			ctx, stop := context.WithCancel(t.Context())
			record := exec.CommandContext(ctx, lighter, "trace", "record", "--root", d.root, "tools:1")
			if err := record.Start(); err != nil {
				t.Fatal(err)
			}
			eventually.Holds(t, "a mount whose reads can be recorded",
				func() bool { return !status(t, d.root).Mounts[0].Local })
			run(t, "mount", "--root", d.root, "tools:1", again).good()
			if m := status(t, d.root).Mounts[0]; m.Local {
				t.Errorf("a mount during a recording: %+v, want one of the node's device", m)
			}
			run(t, "unmount", "--root", d.root, again).good()
			stop()
			_ = record.Wait() // always an error after SIGKILL
			eventually.Holds(t, "a mount of the local device", func() bool {
				run(t, "mount", "--root", d.root, "tools:1", again).good()
				run(t, "unmount", "--root", d.root, again).good()
				return status(t, d.root).Mounts[0].Local
			})

			d.end(syscall.SIGKILL)
			d.start()
			if m := status(t, d.root).Mounts[0]; !m.Local {
				t.Errorf("after a takeover: %+v, want a mount of the local device", m)
			}
			d.lose()
			if err := site.DropCaches(); err != nil {
				t.Fatal(err)
			}
			shows(t, local)
			d.start()
			if m := status(t, d.root).Mounts[0]; !m.Local {
				t.Errorf("after a restart: %+v, want a mount of the local device", m)
			}

			flipEvery(t, device, 3<<20)
			found := cache[imagecache.Scrubbed](t, d, "scrub")
			s := status(t, d.root)
			if found.Files != 1 || len(localFiles(t, d.root)) > 1 || len(s.Lost) != 1 ||
				!strings.Contains(s.Lost[0].Cause, "wrong bytes") {
				t.Errorf("the scrub found %+v, lost %+v, local devices %v; want one damaged file, one lost tree",
					found, s.Lost, localFiles(t, d.root))
			}
			run(t, "mount", "--root", d.root, "tools:1", again).good()
			if err := site.DropCaches(); err != nil {
				t.Fatal(err)
			}
			shows(t, again)
			for _, dir := range []string{served, local, again} {
				run(t, "unmount", "--root", d.root, dir).good()
			}
			if left := localFiles(t, d.root); len(left) > 0 {
				t.Errorf("local devices of an unmounted image: %v, want none", left)
			}
		})
	}
}

// A node is killed while it writes a local device, and the next node has no space to write it. That
// node removes the unfinished file. A later node writes the local device.
func TestLocalDeviceIsNotFinished(t *testing.T) {
	root := newRoot(t)
	if err := os.MkdirAll(root, 0o700); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "ext4")
	script := "truncate -s 40M $1 && mkfs.ext4 -q -F -m 0 $1 && mount -o loop $1 $2"
	if out, err := exec.Command("sh", "-ec", script, "sh", image, root).CombinedOutput(); err != nil {
		t.Fatalf("make an ext4 disk: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	d := startNode(t, root, "--address", "", "--cache-size", "64MiB", "--disk-free-low", "0")
	dir := t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	cache[imagecache.Status](t, d, "pin", "--fetch", "tools:1")
	d.end(syscall.SIGKILL)

	trees, err := filepath.Glob(filepath.Join(root, "trees/*"))
	if err != nil || len(trees) != 1 {
		t.Fatalf("trees on the disk: %v (%v), want one", trees, err)
	}
	unfinished, finished := filepath.Join(trees[0], "local.new"), filepath.Join(trees[0], "local")
	exists := func(path string) bool { _, err := os.Stat(path); return err == nil }
	d.args = append(d.args, "--local-device")
	killed := false
	for range 20 {
		d.start()
		// The loop has no pause, because the unfinished file exists only for a short time.
		for end := time.Now().Add(time.Minute); !exists(unfinished) && !exists(finished); {
			if time.Now().After(end) {
				t.Fatalf("the node has not begun a local device within a minute: %s", d.said())
			}
		}
		d.end(syscall.SIGKILL)
		if killed = exists(unfinished); killed {
			break
		}
		if err := os.RemoveAll(finished); err != nil {
			t.Fatal(err)
		}
	}
	if !killed {
		t.Fatal("none of 20 kills came while the node wrote the local device")
	}
	// The unfinished file is emptied first, so that its removal frees no space on the full disk.
	if err := os.Truncate(filepath.Join(unfinished, "device"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	full := filepath.Join(root, "full")
	out, _ := exec.Command("dd", "if=/dev/zero", "of="+full, "bs=64k").CombinedOutput()
	if !strings.Contains(string(out), "No space left") {
		t.Fatalf("the disk is not full: %s", out)
	}
	if err := os.Truncate(full, fileSize(t, full)-2<<20); err != nil { // space for the node's own files
		t.Fatal(err)
	}
	d.start()
	eventually.Holds(t, "a failed write", func() bool {
		return strings.Contains(status(t, root).Completion.Failed,
			"no space")
	})
	if left := localFiles(t, root); len(left) > 0 || exists(unfinished) {
		t.Errorf("local devices on the full disk: %v, want none", left)
	}
	if got := status(t, root).Cache.External; got != 0 {
		t.Errorf("%d bytes are counted for a missing local device, want 0", got)
	}
	shows(t, dir)
	d.end(syscall.SIGKILL)
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	d.start()
	awaitLocal(t, d)
	if got := status(t, root).Cache.External; got < int64(len(large)) {
		t.Errorf("%d bytes are counted for the local device, want at least %d", got, len(large))
	}
	run(t, "unmount", "--root", d.root, dir).good()
	d.end(syscall.SIGTERM)
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
