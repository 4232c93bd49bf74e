//go:build e2e

package soak

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lighter/node/control"
	"lighter/node/report"
	"lighter/test/testkit/faultfs"
	"lighter/test/testkit/site"
)

// foreign answers requests in place of the hub, as captive portals and broken load balancers do.
type foreign struct {
	on      atomic.Bool  // if false, requests reach the hub
	answers atomic.Int64 // number of answers so far
}

func (f *foreign) handle(w http.ResponseWriter, _ *http.Request) (answered bool) {
	if !f.on.Load() {
		return false
	}
	f.answers.Add(1)
	switch rand.IntN(5) {
	case 0:
		http.NotFound(w, nil)
	case 1:
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<html>Please log in.</html>")
	case 2:
		w.Header().Set("Location", "/login")
		w.WriteHeader(http.StatusFound)
	case 3:
		w.WriteHeader(http.StatusForbidden)
	case 4:
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, "too short")
	}
	return true
}

// hostile is a disturbed site with failures of its hub, disk and memory, and with floods by other
// containers.
type hostile struct {
	*disturbed
	foreign *foreign
	disk    *faultfs.FS
	group   string // path of a cgroup with a memory limit of 0

	// How often each disturbance has happened.
	floods      int
	hangs       int // of the disk
	slowLoads   int // starts of a daemon while the cache's index could not be opened
	outOfMemory int // daemons that the OOM killer has ended
	refused     int // starts of a daemon that refused a damaged statement
}

func startHostile(t *testing.T) *hostile {
	t.Helper()
	h := &hostile{foreign: &foreign{}}
	address, end, err := site.Intercept(h.foreign.handle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	root, err := os.MkdirTemp("", "n") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	cache := filepath.Join(root, "cache")
	if err := os.Mkdir(cache, 0o700); err != nil {
		t.Fatal(err)
	}
	if h.disk, err = faultfs.Mount(t.TempDir(), cache); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.disk.Close(cache) })
	h.group = fmt.Sprintf("/sys/fs/cgroup/memory/lighter-soak-%d", rand.Uint32())
	if err := os.Mkdir(h.group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(h.group) })
	if err := os.WriteFile(filepath.Join(h.group, "memory.limit_in_bytes"), []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	h.disturbed = disturb(t, site.Options{NodeRoot: root, Hubs: []string{address}}, unprepared)
	t.Cleanup(h.disk.Release) // before the site is closed
	// The file has more pages than a node's limit of queued reads.
	addFile(t, h.Site, "python", "flood", "big", strings.Repeat(noise(1<<20), 300))
	if _, err := h.Machine.Pull(t.Context(), site.Lighter, site.Reference("flood")); err != nil {
		t.Fatal(err)
	}
	return h
}

// noise returns bytes that do not compress.
func noise(n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return string(b)
}

// flood starts a container in which an ordinary user requests read-ahead of a large file again and
// again. stop removes the container.
func (h *hostile) flood() (stop func()) {
	h.t.Helper()
	const loop = `import os
file = os.open("/big", os.O_RDONLY)
size = os.fstat(file).st_size
os.setuid(1000)
while True:
    for at in range(0, size, 4096):
        os.posix_fadvise(file, at, 4096, os.POSIX_FADV_WILLNEED)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)`
	c, err := h.Machine.StartContainer(h.t.Context(), site.Lighter, site.Reference("flood"), "python3", "-c", loop)
	if err != nil {
		h.t.Fatal(err)
	}
	h.floods++
	return func() {
		if err := c.Remove(context.Background()); err != nil {
			h.t.Error(err)
		}
	}
}

// exhaust makes the kernel's OOM killer end the daemon. If that has not happened after five
// seconds, it kills the daemon.
func (h *hostile) exhaust() {
	h.t.Helper()
	// The group's limit counts memory that the daemon allocates from now on.
	pid := []byte(strconv.Itoa(h.Machine.NodePID()))
	if err := os.WriteFile(filepath.Join(h.group, "cgroup.procs"), pid, 0); err != nil {
		h.t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && h.Machine.NodeRuns(); {
		time.Sleep(5 * time.Millisecond)
	}
	if !h.Machine.NodeRuns() {
		h.outOfMemory++
	}
	h.Machine.KillNode()
}

// damage flips a bit in the signature of each statement on the disk.
func (h *hostile) damage() {
	h.t.Helper()
	paths, err := filepath.Glob(filepath.Join(h.Machine.NodeRoot(), "chains", "*"))
	if err != nil || len(paths) == 0 {
		h.t.Fatalf("found no statements on the disk (%v), want some", err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err == nil {
			b[bytes.Index(b, []byte("signature"))+20] ^= 1
			err = os.WriteFile(path, b, 0o600)
		}
		if err != nil {
			h.t.Fatal(err)
		}
	}
}

func (h *hostile) status() report.Status {
	h.t.Helper()
	s, err := control.New(h.Machine.NodeRoot()).Status(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// round starts each kind of disturbance with a probability of one half, so that several kinds
// overlap. It ends the daemon meanwhile, and starts another one. The outages are short, because
// reads fail if no hub answers for 100 s.
func (h *hostile) round() {
	h.t.Helper()
	chance := func() bool { return rand.IntN(2) == 0 }
	h.emptyCaches()
	if chance() {
		defer h.flood()()
	}
	h.foreign.on.Store(chance())
	if chance() {
		h.disk.Hang("", faultfs.Read, faultfs.Write, faultfs.Open, faultfs.Unlink)
		h.hangs++
		// A process that waits for a disk cannot end before the disk answers.
		time.AfterFunc(4*time.Second, h.disk.Release)
	}
	time.Sleep(time.Duration(rand.IntN(3000)) * time.Millisecond)
	if chance() {
		h.endDaemon(h.exhaust)
	} else {
		h.endDaemon(h.Machine.KillNode)
	}
	h.disk.Release()
	damaged, slow := chance(), chance()
	if damaged {
		h.damage()
	}
	if slow {
		h.disk.Hang(".table", faultfs.Open) // the files of the cache's index cannot be opened
		h.slowLoads++
	}
	h.start("")
	if damaged && len(h.status().Refused) > 0 {
		h.refused++
	}
	time.Sleep(time.Duration(rand.IntN(3000)) * time.Millisecond)
	h.foreign.on.Store(false)
	h.progress()
	h.disk.Release()
	h.whole.check(h.t)
	h.random.check(h.t)
}

// progress waits until the daemon has received 100 more reads. The cache's files may still hang.
func (h *hostile) progress() {
	h.t.Helper()
	faults := func() (n int64) {
		for _, m := range h.status().Mounts {
			n += m.Device.Faults
		}
		return n
	}
	if err := site.DropCaches(); err != nil { // otherwise readers use cached pages
		h.t.Fatal(err)
	}
	for before, end := faults(), time.Now().Add(patience); faults() < before+100; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatalf("the daemon has received only %d reads in %v, want 100", faults()-before, patience)
		}
	}
}

// Damaged statements, floods of reads, foreign answers in place of the hub's, a hanging disk, a
// cache that cannot be loaded, and the OOM killer occur at the same time. No read fails, hangs or
// returns wrong bytes.
func TestSoakHostile(t *testing.T) {
	h := startHostile(t)
	for range times(3, 30) {
		h.round()
	}
	for end := time.Now().Add(patience); len(h.status().Refused) > 0; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the node still refuses statements after %v: %+v, want none: the hub has the right ones", patience,
				h.status().Refused)
		}
	}
	t.Logf("%d foreign answers, %d floods, %d hanging disks, %d caches not loaded, %d OOM kills, %d refused statements",
		h.foreign.answers.Load(), h.floods, h.hangs, h.slowLoads, h.outOfMemory, h.refused)
	if long && (h.foreign.answers.Load() == 0 || min(h.floods, h.hangs, h.slowLoads, h.outOfMemory, h.refused) == 0) {
		t.Error("a kind of disturbance did not occur: see the numbers above, want at least 1 of each")
	}
	h.end()
}
