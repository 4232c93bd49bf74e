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
	"lighter/test/testkit/site"
)

// window is a part of the day that begins in so many hours and lasts for two.
func window(hours int) string {
	from := time.Now().Add(time.Duration(hours) * time.Hour)
	return from.Format("15:04") + "-" + from.Add(2*time.Hour).Format("15:04")
}

// localFiles lists what there is of local devices below a root, finished or not.
func localFiles(t *testing.T, root string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, "trees/*/local*/*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func awaitLocal(t *testing.T, d *daemon) (device string) {
	t.Helper()
	eventually(t, "a local device", func() bool {
		found, _ := filepath.Glob(filepath.Join(d.root, "trees/*/local/device"))
		if len(found) == 1 {
			device = found[0]
		}
		return device != ""
	})
	return device
}

// An image that is mounted is fetched as a whole: when the schedule says so, no faster
// than the rate, going on after a kill where it was.
func TestImageIsCompleted(t *testing.T) {
	d := startNode(t, newRoot(t), "--address", "", "--complete", "--complete-rate", "2MiB", "--complete-schedule",
		window(3))
	dir := t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	eventually(t, "a reason to wait", func() bool {
		return strings.Contains(status(t, d.root).Completion.Waits,
			"schedule")
	})
	if text := run(t, "status", "--root", d.root, "tools:1").good(); !strings.Contains(text, "waits: the schedule is") {
		t.Errorf("the status says\n%s", text)
	}
	if s := status(t, d.root); s.Fetched.Requests > 0 || s.Cache.Chunks > 0 {
		t.Errorf("outside of the schedule there came %+v", s.Fetched)
	}
	d.end(syscall.SIGKILL)

	d.args[len(d.args)-1] = window(-1)
	open := d.args
	d.args = append(slices.Clone(open), "--hub", "http://127.0.0.1:9") // where nobody is
	d.start()
	eventually(t, "its failure", func() bool { return status(t, d.root).Completion.Failed != "" })
	d.end(syscall.SIGKILL)

	d.args = open
	begun := time.Now()
	d.start()
	eventually(t, "a part of the image", func() bool { return status(t, d.root).Completion.Fetched > 1<<20 })
	d.end(syscall.SIGKILL)
	d.start()
	whole := func() bool {
		s := status(t, d.root).Completion
		images, err := control.New(d.root).Images(t.Context(), "tools:1")
		if err != nil {
			t.Fatal(err)
		}
		here := images[0].Content
		return s.Fetched > 0 && here.CachedBytes == here.Bytes && here.Bytes >= int64(len(large))
	}
	eventually(t, "the whole image", whole)
	if took := time.Since(begun); took < 1500*time.Millisecond { // 5 MiB at 2 MiB/s, but for what may come at once
		t.Errorf("it came in %s, which is faster than the rate", took)
	}
	if again := status(t, d.root).Completion.Fetched; again > int64(len(large))-1<<19 {
		t.Errorf("after it was killed, %d bytes came", again)
	}
	if left := localFiles(t, d.root); len(left) > 0 {
		t.Errorf("nobody has asked for a local device: %v", left)
	}
	d.end(syscall.SIGKILL)
	d.args = append(d.args, "--local-device") // by which it is seen that it has looked
	d.start()
	awaitLocal(t, d)
	if s := status(t, d.root); s.Fetched.Requests > 0 {
		t.Errorf("when all was here, there came %+v", s.Fetched)
	}
	run(t, "unmount", "--root", d.root, dir).good()
}

// When all of an image is here its next mount reads a local device, and goes on when
// nobody serves any more. A node that starts then uses the device too. A bit that flips
// in it is found, and mounts read the node's device again.
func TestLocalDevice(t *testing.T) {
	for _, mode := range []string{"file", "loop"} {
		t.Run(mode, func(t *testing.T) {
			d := startNode(t, newRoot(t), "--address", "", "--complete", "--local-device", "--mount-mode", mode)
			served, local, again := t.TempDir(), t.TempDir(), t.TempDir()
			run(t, "mount", "--root", d.root, "tools:1", served).good()
			device := awaitLocal(t, d)
			if m := status(t, d.root).Mounts[0]; m.Local {
				t.Errorf("before anything was mounted anew: %+v", m)
			}
			run(t, "mount", "--root", d.root, "tools:1", local).good()
			faults := status(t, d.root).Mounts[0]
			if !faults.Local || string(faults.Mode) != mode {
				t.Errorf("mounted anew: %+v", faults)
			}
			if err := site.DropCaches(); err != nil {
				t.Fatal(err)
			}
			shows(t, local)
			if m := status(t, d.root).Mounts[0]; m.Device.Faults != faults.Device.Faults {
				t.Errorf("reading the local device costs %d faults", m.Device.Faults-faults.Device.Faults)
			}
			if text := run(t, "status", "--root", d.root, "tools:1").good(); !strings.Contains(text, "mode local") ||
				!strings.Contains(text, "without the node") {
				t.Errorf("the status says\n%s", text)
			}
			shows(t, served)

			ctx, stop := context.WithCancel(t.Context())
			record := exec.CommandContext(ctx, lighter, "trace", "record", "--root", d.root, "tools:1")
			if err := record.Start(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "a mount whose reads can be recorded",
				func() bool { return !status(t, d.root).Mounts[0].Local })
			run(t, "mount", "--root", d.root, "tools:1", again).good()
			if m := status(t, d.root).Mounts[0]; m.Local {
				t.Errorf("while reads are recorded: %+v", m)
			}
			run(t, "unmount", "--root", d.root, again).good()
			stop()
			_ = record.Wait() // it was killed
			eventually(t, "a mount of the local device", func() bool {
				run(t, "mount", "--root", d.root, "tools:1", again).good()
				run(t, "unmount", "--root", d.root, again).good()
				return status(t, d.root).Mounts[0].Local
			})

			d.end(syscall.SIGKILL)
			d.start()
			if m := status(t, d.root).Mounts[0]; !m.Local {
				t.Errorf("a daemon that took it over says %+v", m)
			}
			d.lose()
			if err := site.DropCaches(); err != nil {
				t.Fatal(err)
			}
			shows(t, local)
			d.start()
			if m := status(t, d.root).Mounts[0]; !m.Local {
				t.Errorf("mounted from the disk: %+v", m)
			}

			flipEvery(t, device, 3<<20)
			found := cache[imagecache.Scrubbed](t, d, "scrub")
			s := status(t, d.root)
			if found.Files != 1 || len(localFiles(t, d.root)) > 1 || len(s.Lost) != 1 ||
				!strings.Contains(s.Lost[0].Cause, "wrong bytes") {
				t.Errorf("the damage was found as %+v, %+v; left: %v", found, s.Lost, localFiles(t, d.root))
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
				t.Errorf("left: %v", left)
			}
		})
	}
}

// A node that is killed while it makes a local device, or has no room on the disk for
// it, leaves nothing of it behind, and makes it another time.
func TestLocalDeviceIsNotFinished(t *testing.T) {
	root := newRoot(t)
	if err := os.MkdirAll(root, 0o700); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "ext4")
	script := "truncate -s 40M $1 && mkfs.ext4 -q -F -m 0 $1 && mount -o loop $1 $2"
	if out, err := exec.Command("sh", "-ec", script, "sh", image, root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	d := startNode(t, root, "--address", "", "--cache-size", "64MiB", "--disk-free-low", "0")
	dir := t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	cache[imagecache.Status](t, d, "pin", "--fetch", "tools:1")
	d.end(syscall.SIGKILL)

	trees, err := filepath.Glob(filepath.Join(root, "trees/*"))
	if err != nil || len(trees) != 1 {
		t.Fatal(trees, err)
	}
	fresh, whole := filepath.Join(trees[0], "local.new"), filepath.Join(trees[0], "local")
	is := func(path string) bool { _, err := os.Stat(path); return err == nil }
	d.args = append(d.args, "--local-device")
	killed := false
	for range 20 {
		d.start()
		for end := time.Now().Add(time.Minute); !is(fresh) && !is(whole); { // as fast as it can be seen
			if time.Now().After(end) {
				t.Fatalf("no local device is begun: %s", d.said())
			}
		}
		d.end(syscall.SIGKILL)
		if killed = is(fresh); killed {
			break
		}
		if err := os.RemoveAll(whole); err != nil {
			t.Fatal(err)
		}
	}
	if !killed {
		t.Fatal("it was never caught in the middle")
	}
	// What is left of it stays to be removed, and takes no room.
	if err := os.Truncate(filepath.Join(fresh, "device"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	full := filepath.Join(root, "full")
	out, _ := exec.Command("dd", "if=/dev/zero", "of="+full, "bs=64k").CombinedOutput()
	if !strings.Contains(string(out), "No space left") {
		t.Fatalf("the disk is not full: %s", out)
	}
	if err := os.Truncate(full, fileSize(t, full)-2<<20); err != nil { // for what the node itself writes
		t.Fatal(err)
	}
	d.start()
	eventually(t, "the disk's refusal", func() bool {
		return strings.Contains(status(t, root).Completion.Failed,
			"no space")
	})
	if left := localFiles(t, root); len(left) > 0 || is(fresh) {
		t.Errorf("left: %v", left)
	}
	if got := status(t, root).Cache.External; got != 0 {
		t.Errorf("%d bytes are counted of what is not there", got)
	}
	shows(t, dir)
	d.end(syscall.SIGKILL)
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	d.start()
	awaitLocal(t, d)
	if got := status(t, root).Cache.External; got < int64(len(large)) {
		t.Errorf("%d bytes are counted of the local device", got)
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
