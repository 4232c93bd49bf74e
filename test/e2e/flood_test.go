//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/eventually"
)

// floodPages is more than four times the largest number of unanswered background requests (16,384)
// that a server allows the kernel. If more were unanswered, the kernel would block the processes of
// all images. floodPages is also more than any limit that the kernel accepts (65,535).
const floodPages = 68_000

// makeFloodImage makes an image with one file of floodPages pages. Its device is small because
// mkfs.erofs stores equal chunks once.
func makeFloodImage(t testing.TB) testImage {
	t.Helper()
	const chunkSize = 16 << 20
	content := bytes.Repeat(noise(1, chunkSize), floodPages*4096/chunkSize+1)
	return makeTestImage(t, map[string][]byte{"file": content})
}

// helpFlood requests read-ahead of a file page by page, as user 1000, once or in an endless loop.
// The kernel makes a request of each page. The process does not wait for the answers, but the
// kernel may block it while many requests are unread.
func helpFlood(path string, endless bool) error {
	fd, err := openDevice(path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := syscall.Setuid(1000); err != nil {
		return fmt.Errorf("become user 1000: %w", err)
	}
	for {
		for page := range int64(floodPages) {
			if err := unix.Fadvise(fd, page*4096, 4096, unix.FADV_WILLNEED); err != nil {
				return fmt.Errorf("advise page %d: %w", page, err)
			}
		}
		if !endless {
			return nil
		}
		if err := unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED); err != nil {
			return fmt.Errorf("drop the pages: %w", err)
		}
	}
}

// startFlood runs helpFlood in another process.
func startFlood(t testing.TB, path string, endless bool) (cmd *exec.Cmd, wait func() (string, error)) {
	t.Helper()
	cmd = exec.Command("/proc/self/exe", path, strconv.FormatBool(endless))
	cmd.Env = append(os.Environ(), deviceHelper+"=flood")
	return cmd, start(t, cmd)
}

// An unprivileged process requests read-ahead of a hanging image: more pages than the kernel may
// have unanswered requests. A process can still read another image. Once the device answers, a
// process reads the right bytes of the hanging image.
func TestFloodDoesNotBlockOtherImages(t *testing.T) {
	s, _ := serveDevices(t)
	flooded := makeFloodImage(t)
	other := makeTestImage(t, map[string][]byte{"file": noise(2, 4<<20)})
	h := newHanging(flooded.data)
	_, floodedPath := addDevice(t, s, "flooded", len(flooded.data), h)
	_, otherPath := addDevice(t, s, "other", len(other.data), inMemory(other.data))
	floodedTree, otherTree := mountImage(t, flooded, floodedPath), mountImage(t, other, otherPath)
	release := sync.OnceFunc(func() { close(h.released) })
	t.Cleanup(release) // before the trees are unmounted

	_, flood := startFlood(t, filepath.Join(floodedTree, "file"), false)
	eventually.Holds(t, "65,000 reads of the flood", func() bool {
		st := s.Stats()
		return int64(st.Active+st.Queued)+st.Failed["overload"] >= 65_000
	})
	if st := s.Stats(); st.InKernel < int64(st.Queued) || st.Failed["overload"] == 0 {
		t.Errorf("got %d unanswered requests in the kernel, %d queued reads and the failures %v; want at least as "+
			"many requests as queued reads, and failures by overload", st.InKernel, st.Queued, st.Failed)
	}
	_, read := run(t, "cmp", filepath.Join(other.source, "file"), filepath.Join(otherTree, "file"))
	if out, err := read(); err != nil {
		t.Errorf("a reader of another image: %v %s", err, out)
	}
	if out, err := flood(); err != nil {
		t.Errorf("the flood: %v %s", err, out)
	}
	release()
	// The server has failed the oldest reads, which are those of the first pages. The kernel now
	// reads these pages one by one.
	_, read = run(t, "cmp", "--bytes=64M", filepath.Join(flooded.source, "file"), filepath.Join(floodedTree, "file"))
	if out, err := read(); err != nil {
		t.Errorf("a reader of the flooded image after the release: %v %s", err, out)
	}
	eventually.Holds(t, "the end of all reads", func() bool {
		st := s.Stats()
		return st.Active == 0 && st.Queued == 0 && st.InKernel == 0
	})
}

// Four processes flood a device without end. The kernel blocks them, so only few of their requests
// precede a request for another image.
func TestEndlessFloodsAreBlocked(t *testing.T) {
	for name, stuck := range map[string]bool{"stuck": true, "cached": false} {
		t.Run(name, func(t *testing.T) {
			s, _ := serveDevices(t)
			flooded := makeFloodImage(t)
			other := makeTestImage(t, map[string][]byte{"file": noise(2, 4<<20)})
			h := newHanging(flooded.data)
			_, floodedPath := addDevice(t, s, "flooded", len(flooded.data), h)
			_, otherPath := addDevice(t, s, "other", len(other.data), inMemory(other.data))
			floodedTree, otherTree := mountImage(t, flooded, floodedPath), mountImage(t, other, otherPath)
			release := sync.OnceFunc(func() { close(h.released) })
			if !stuck {
				release()
			}
			var wait []func() (string, error)
			for range 4 {
				cmd, ended := startFlood(t, filepath.Join(floodedTree, "file"), true)
				wait = append(wait, func() (string, error) {
					cmd.Process.Kill()
					return ended()
				})
			}
			defer func() { // before the trees are unmounted
				release()
				for _, end := range wait {
					end() // returns an error, because the process was killed
				}
			}()
			eventually.Holds(t, "a failed read, or 10,000 answered pages, of the floods", func() bool {
				st := s.Stats()
				return st.Failed["overload"] > 0 || st.CachedBytes > 10_000*4096
			})
			var unread []int64 // compared by its median, because a busy machine has high peaks
			for range 500 {
				st := s.Stats()
				unread = append(unread, st.InKernel-int64(st.Active+st.Queued))
				time.Sleep(time.Millisecond)
			}
			if slices.Sort(unread); unread[len(unread)/2] > 2000 {
				t.Errorf("the median of unread and blocked requests is %d, want 2000 at most", unread[len(unread)/2])
			}
			_, read := run(t, "cmp", filepath.Join(other.source, "file"), filepath.Join(otherTree, "file"))
			if out, err := read(); err != nil {
				t.Errorf("a reader of another image: %v %s", err, out)
			}
		})
	}
}
