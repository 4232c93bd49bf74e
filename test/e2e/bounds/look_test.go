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

// seen is what there is of a node and of its containerd, while nobody uses them.
type seen struct {
	containerd []string // its images, containers, snapshots, blobs and leases
	files      []string // below the node's root, but for the cache
	mounts     []string // on the machine
	loops      []string
	use        use
}

// use is what the node's process has.
type use struct {
	Descriptors int // but for sockets
	Sockets     int
	Goroutines  int // but for those of sockets
	Heap        int // bytes in use
	Keepers     int
}

// The most by which use may differ between two looks, however many rounds lie
// between them.
const (
	moreDescriptors = 4
	maxSockets      = 64 + 16 // connections to the hub that wait for the next request, and a few others
	moreGoroutines  = 4
	moreHeap        = 14 << 20 // pages of extent maps are kept up to 10 MB
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
		// else it has just been freed
		if b, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(b), s.Dir) {
			found.loops = append(found.loops, string(b))
		}
	}
	found.use = lookInside(t, s)
	return found
}

// lines returns the mount points that a mountinfo file has below dir.
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
		case err != nil: // it has just been closed
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
		t.Fatal("the heap's profile does not say what is in use")
	}
	if u.Heap, err = strconv.Atoi(string(found[1])); err != nil {
		t.Fatal(err)
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range commands {
		b, _ := os.ReadFile(file) // it may just have ended
		if strings.HasSuffix(string(b), "\x00keeper\x00"+s.Machine.NodeRoot()+"\x00") {
			u.Keepers++
		}
	}
	return u
}

// alike is how a profile begins to speak of goroutines with one stack.
var alike = regexp.MustCompile(`(?m)^(\d+) @ `)

// goroutines counts the node's goroutines but for those that belong to a
// connection, of which there may be a few more or less.
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

// wantEmpty wants nothing of images and containers.
func (found seen) wantEmpty(t *testing.T) {
	t.Helper()
	if len(found.containerd) > 0 {
		t.Errorf("containerd has\n%s", strings.Join(found.containerd, "\n"))
	}
	if len(found.loops) > 0 {
		t.Errorf("loop devices of %q", found.loops)
	}
	if len(found.mounts) != 1 || found.use.Keepers != 1 {
		t.Errorf("%d keepers; mounted: %q; want the devices alone", found.use.Keepers, found.mounts)
	}
}

// wantFiles wants no other files than there were before.
func (found seen) wantFiles(t *testing.T, before seen) {
	t.Helper()
	for _, path := range found.files {
		if !slices.Contains(before.files, path) {
			t.Errorf("left behind: %s", path)
		}
	}
}

// wantUse wants the node's process to be as it was.
func (found seen) wantUse(t *testing.T, before seen) {
	t.Helper()
	a, b := before.use, found.use
	if b.Descriptors > a.Descriptors+moreDescriptors || b.Sockets > maxSockets ||
		b.Goroutines > a.Goroutines+moreGoroutines || b.Heap > a.Heap+moreHeap {
		t.Errorf("the node has grown from %+v to %+v", a, b)
	}
}
