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

// state is what an idle node and its containerd have.
type state struct {
	containerd []string // its images, containers, snapshots, blobs and leases
	files      []string // below the node's root, without the contents of the directories cache and devices
	mounts     []string // mount points on the machine
	loops      []string // backing files of loop devices
	usage      usage
}

// usage counts the resources of the node's process, and its keepers.
type usage struct {
	Descriptors int // without those of sockets
	Sockets     int
	Goroutines  int // without those of connections
	Heap        int // bytes in use
	Keepers     int // processes
}

// Limits of the later of two usages, however many rounds lie between the two. Those that begin with
// more limit the growth.
const (
	moreDescriptors = 4
	maxSockets      = 64 + 16 // idle connections to the hub, and a few other sockets
	moreGoroutines  = 4
	moreHeap        = 14 << 20 // in bytes; up to 10 MB of pages of extent maps are cached
)

// look returns the state of a site's node, which must be idle, and of its containerd.
func look(t *testing.T, s *site.Site) (found state) {
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
	found.mounts = mountPoints(t, "/proc/self/mountinfo", filepath.Dir(root))
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range backing {
		b, err := os.ReadFile(file) // fails if the device has just been freed
		if err == nil && strings.HasPrefix(string(b), s.Dir) {
			found.loops = append(found.loops, string(b))
		}
	}
	found.usage = usageOf(t, s)
	return found
}

// mountPoints returns the mount points below dir that a mountinfo file lists.
func mountPoints(t *testing.T, file, dir string) (points []string) {
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

// usageOf measures the usage of a site's node.
func usageOf(t *testing.T, s *site.Site) (u usage) {
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
		t.Fatal("the heap profile of the node has no line with HeapAlloc")
	}
	if u.Heap, err = strconv.Atoi(string(found[1])); err != nil {
		t.Fatal(err)
	}
	keepers, err := site.Keepers(s.Machine.NodeRoot())
	if err != nil {
		t.Fatal(err)
	}
	u.Keepers = len(keepers)
	return u
}

// sameStack matches the first line of a profile's entry: it has the number of goroutines that have
// the same stack.
var sameStack = regexp.MustCompile(`(?m)^(\d+) @ `)

// goroutines counts the node's goroutines without those of connections, whose number varies.
func goroutines(t *testing.T, s *site.Site) (n int) {
	t.Helper()
	text, err := s.Machine.NodeProfile(t.Context(), "goroutine?debug=1")
	if err != nil {
		t.Fatal(err)
	}
	for stack := range strings.SplitSeq(string(text), "\n\n") {
		found := sameStack.FindStringSubmatch(stack)
		if found == nil || strings.Contains(stack, "net/http.(*") ||
			strings.Contains(stack, "grpc/internal/transport") {
			continue
		}
		count, err := strconv.Atoi(found[1])
		if err != nil {
			t.Fatal(err)
		}
		n += count
	}
	if n == 0 {
		t.Fatalf("the goroutine profile of the node lists no goroutine:\n%s", text)
	}
	return n
}

// wantEmpty fails the test if anything of an image or a container is left.
func (found state) wantEmpty(t *testing.T) {
	t.Helper()
	if len(found.containerd) > 0 {
		t.Errorf("containerd still has\n%s", strings.Join(found.containerd, "\n"))
	}
	if len(found.loops) > 0 {
		t.Errorf("loop devices of %q are left", found.loops)
	}
	if len(found.mounts) != 1 || found.usage.Keepers != 1 {
		t.Errorf("got %d keepers and the mounts %q, want one keeper and the mount of the devices", found.usage.Keepers,
			found.mounts)
	}
}

// wantFiles fails the test if the node has a file that it did not have before.
func (found state) wantFiles(t *testing.T, before state) {
	t.Helper()
	for _, path := range found.files {
		if !slices.Contains(before.files, path) {
			t.Errorf("the node left the file %s", path)
		}
	}
}

// wantUsage fails the test if the node's usage is beyond the limits.
func (found state) wantUsage(t *testing.T, before state) {
	t.Helper()
	a, b := before.usage, found.usage
	if b.Descriptors > a.Descriptors+moreDescriptors || b.Sockets > maxSockets ||
		b.Goroutines > a.Goroutines+moreGoroutines || b.Heap > a.Heap+moreHeap {
		t.Errorf("the node's usage has grown beyond the limits, from %+v to %+v", a, b)
	}
}
