//go:build e2e

package bounds

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"lighter/test/testkit/site"
)

// seen is the state of an idle node and its containerd.
type seen struct {
	containerd []string // its images, containers, snapshots, blobs and leases
	files      []string // below the node's root, without the cache
	mounts     []string // on the machine
	loops      []string
	use        use
}

// use holds the resources of the node's process.
type use struct {
	Descriptors int // without sockets
	Sockets     int
	Goroutines  int // without those of connections
	Heap        int // bytes in use
	Keepers     int
}

// Limits of the growth of use between two looks. They do not depend on the number of rounds between
// the looks.
const (
	moreDescriptors = 4
	maxSockets      = 64 + 16 // idle connections to the hub, and a few others
	moreGoroutines  = 4
	moreHeap        = 14 << 20 // up to 10 MB of pages of extent maps are cached
)

func look(t *testing.T, s *site.Site) (found seen) {
	t.Helper()
	for _, list := range [][]string{
		{"images", "ls", "-q"}, {"containers", "ls", "-q"}, {"content", "ls", "-q"}, {"leases", "ls", "-q"},
		{"snapshots", "--snapshotter", site.Lighter, "ls"}, {"snapshots", "--snapshotter", site.Overlayfs, "ls"},
	} {
		out, err := s.Machine.Ctr(t.Context(), list...)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out) {
			if !strings.HasPrefix(line, "KEY ") { // the heading
				found.containerd = append(found.containerd, list[0]+" "+strings.TrimSpace(line))
			}
		}
	}
	root := s.Machine.NodeRoot()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		found.files = append(found.files, path)
		if err == nil && (path == filepath.Join(root, "cache") || path == filepath.Join(root, "devices")) {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	found.mounts = lines(t, "/proc/self/mountinfo", filepath.Dir(root))
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range backing {
		// otherwise the device has just been freed
		if b, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(b), s.Dir) {
			found.loops = append(found.loops, string(b))
		}
	}
	found.use = lookInside(t, s)
	return found
}

// lines returns the mount points below dir in a mountinfo file.
func lines(t *testing.T, file, dir string) (points []string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	return points
}

var heapInUse = regexp.MustCompile(`# HeapAlloc = (\d+)`)

func lookInside(t *testing.T, s *site.Site) (u use) {
	t.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.Machine.NodePID()))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, err := os.Readlink(fd)
		switch {
		case err != nil: // the descriptor has just been closed
		case strings.HasPrefix(to, "socket:"):
			u.Sockets++
		default:
			u.Descriptors++
		}
	}
	u.Goroutines = goroutines(t, s)
	text, err := s.Machine.NodeProfile(t.Context(), "heap?gc=1&debug=1")
	if err != nil {
		t.Fatal(err)
	}
	found := heapInUse.FindSubmatch(text)
	if found == nil {
		t.Fatal("the heap profile has no figure of the heap in use")
	}
	if u.Heap, err = strconv.Atoi(string(found[1])); err != nil {
		t.Fatal(err)
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range commands {
		b, _ := os.ReadFile(file) // the process may just have ended
		if strings.HasSuffix(string(b), "\x00keeper\x00"+s.Machine.NodeRoot()+"\x00") {
			u.Keepers++
		}
	}
	return u
}

// alike matches the first line of a profile's entry for goroutines with the same stack.
var alike = regexp.MustCompile(`(?m)^(\d+) @ `)

// goroutines counts the node's goroutines without those of connections, whose number varies.
func goroutines(t *testing.T, s *site.Site) (n int) {
	t.Helper()
	text, err := s.Machine.NodeProfile(t.Context(), "goroutine?debug=1")
	if err != nil {
		t.Fatal(err)
	}
	for stack := range strings.SplitSeq(string(text), "\n\n") {
		found := alike.FindStringSubmatch(stack)
		if found == nil || strings.Contains(stack, "net/http.(*") ||
			strings.Contains(stack, "grpc/internal/transport") {
			continue
		}
		one, err := strconv.Atoi(found[1])
		if err != nil {
			t.Fatal(err)
		}
		n += one
	}
	if n == 0 {
		t.Fatalf("no goroutines:\n%s", text)
	}
	return n
}

// wantEmpty checks that nothing of images and containers is left.
func (found seen) wantEmpty(t *testing.T) {
	t.Helper()
	if len(found.containerd) > 0 {
		t.Errorf("containerd has\n%s", strings.Join(found.containerd, "\n"))
	}
	if len(found.loops) > 0 {
		t.Errorf("loop devices of %q are left", found.loops)
	}
	if len(found.mounts) != 1 || found.use.Keepers != 1 {
		t.Errorf("%d keepers, mounts %q, want one keeper and the mount of the devices", found.use.Keepers, found.mounts)
	}
}

// wantFiles checks that there are no files that were not there before.
func (found seen) wantFiles(t *testing.T, before seen) {
	t.Helper()
	for _, path := range found.files {
		if !slices.Contains(before.files, path) {
			t.Errorf("left behind: %s", path)
		}
	}
}

// wantUse checks that the resources of the node's process have not grown beyond the limits.
func (found seen) wantUse(t *testing.T, before seen) {
	t.Helper()
	a, b := before.use, found.use
	if b.Descriptors > a.Descriptors+moreDescriptors || b.Sockets > maxSockets ||
		b.Goroutines > a.Goroutines+moreGoroutines || b.Heap > a.Heap+moreHeap {
		t.Errorf("the node has grown from %+v to %+v", a, b)
	}
}
