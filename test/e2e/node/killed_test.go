//go:build e2e

package node

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lighter/node/keeper"
	"lighter/node/mount"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/site"
)

// stalling is a TCP proxy in front of the hub. A test can stop it from forwarding the hub's
// answers.
type stalling struct {
	url  string
	gate sync.RWMutex // locked for writing while the proxy forwards no answers
}

// startStalling starts a proxy that serves until the test ends.
func startStalling(t *testing.T) *stalling {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p := &stalling{url: "http://" + l.Addr().String()}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(conn)
		}
	}()
	return p
}

func (p *stalling) serve(conn net.Conn) {
	defer conn.Close()
	hub, err := net.Dial("tcp", "127.0.0.1:7070")
	if err != nil {
		return
	}
	defer hub.Close()
	go func() { _, _ = io.Copy(hub, conn); hub.Close() }() // hub.Close ends the loop below
	for b := make([]byte, 4096); ; {
		n, err := hub.Read(b)
		p.gate.RLock()
		_, failed := conn.Write(b[:n])
		p.gate.RUnlock()
		if err != nil || failed != nil {
			return
		}
	}
}

// A daemon is killed while it unmounts a tree with a read in flight. The killed daemon cannot end
// until the read ends. The next daemon takes over and answers the read. If the keeper has ended,
// too, the read fails.
func TestKilledWhileUnmounting(t *testing.T) {
	t.Run("the daemon", func(t *testing.T) { testKilledWhileUnmounting(t, false) })
	t.Run("its keeper too", func(t *testing.T) { testKilledWhileUnmounting(t, true) })
}

func testKilledWhileUnmounting(t *testing.T, keeperToo bool) {
	hub := startStalling(t)
	root := newRoot(t)
	// If no daemon answered the read, the killed daemon could not end, and the test would hang.
	guard := time.AfterFunc(30*time.Second, func() { _ = mount.Release(root) })
	t.Cleanup(func() {
		if guard.Stop() && t.Failed() {
			_ = mount.Release(root)
		}
	})
	d := startNode(t, root, "--address", "", "--hub", hub.url)
	dir, open := abandonRead(t, d, hub)
	unmount := exec.Command(lighter, "unmount", "--root", d.root, dir)
	if err := unmount.Start(); err != nil {
		t.Fatal(err)
	}
	killed := d.cmd
	stuck := func() bool { return unmounting(t, killed.Process.Pid) }
	eventually.Holds(t, "a hanging unmount", stuck)
	if err := killed.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := unmount.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = unmount.Wait() // always an error after SIGKILL
	if !stuck() {
		t.Fatal("the killed daemon has ended, want it to wait for the read")
	}
	if keeperToo {
		if err := (keeper.Process{Root: root}).Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.start()
		_ = killed.Wait() // the killed daemon ends because the read has failed
		open()
	} else {
		d.start()
		open()
		_ = killed.Wait() // the killed daemon ends because the read was answered
	}
	again := t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", again).good()
	shows(t, again)
	run(t, "unmount", "--root", d.root, again).good()
	run(t, "node", "--root", d.root, "--address", "").bad(1, "in use")
}

// abandonRead mounts a tree at dir, and leaves a read in flight whose reader was killed. The hub
// does not answer until open is called.
func abandonRead(t *testing.T, d *daemon, hub *stalling) (dir string, open func()) {
	t.Helper()
	dir = t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	hub.gate.Lock()
	open = sync.OnceFunc(hub.gate.Unlock)
	t.Cleanup(open)
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	reader := exec.Command("cat", filepath.Join(dir, "large"))
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "a read", func() bool { return status(t, d.root).Mounts[0].Device.Missed > 0 })
	if err := reader.Process.Kill(); err != nil { // the kernel's read-ahead stays in flight
		t.Fatal(err)
	}
	_ = reader.Wait() // always an error after SIGKILL
	return dir, open
}

// `lighter unmount` unmounts a tree while a read of the tree is in flight, if the reader is gone.
func TestRemovedWithAReadInFlight(t *testing.T) {
	hub := startStalling(t)
	d := startNode(t, newRoot(t), "--address", "", "--hub", hub.url)
	dir, open := abandonRead(t, d, hub)
	defer open()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // shorter than the 100 s after which reads fail
	defer cancel()
	if out, err := exec.CommandContext(ctx, lighter, "unmount", "--root", d.root, dir).CombinedOutput(); err != nil {
		t.Fatalf("lighter unmount: %v: %s", err, out)
	}
	if s := status(t, d.root); len(s.Mounts) != 0 {
		t.Errorf("mounts after unmount: %+v, want none", s.Mounts)
	}
}

// A node that is stopped does not wait for a hanging hub. Reads in flight wait for the next node.
func TestStoppedWithAReadInFlight(t *testing.T) {
	hub := startStalling(t)
	root := newRoot(t)
	d := startNode(t, root, "--address", "", "--hub", hub.url)
	dir, open := abandonRead(t, d, hub)
	if err := syscall.Unmount(dir, 0); err != nil { // only the node's own mount is left
		t.Fatal(err)
	}
	stopped := d.cmd
	d.cmd = nil
	ended := make(chan error, 1)
	go func() { ended <- stopped.Wait() }()
	if err := stopped.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended: // before the hub has answered
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute): // shorter than the 100 s after which reads fail
		open()
		<-ended
		t.Fatal("the node has not ended within a minute, because it waits for the hub")
	}
	if !strings.Contains(d.said(), "stays mounted") {
		t.Errorf("the node's log does not say that a tree stays mounted, so no read was in flight:\n%s", d.said())
	}
	d.start()
	open()
	again := t.TempDir()
	run(t, "mount", "--root", root, "tools:1", again).good()
	shows(t, again)
	run(t, "unmount", "--root", root, again).good()
}

// unmounting reports whether a thread of a process unmounts a tree and waits for a read in flight.
func unmounting(t *testing.T, pid int) bool {
	t.Helper()
	stacks, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stack")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stacks {
		stack, err := os.ReadFile(path)
		if err == nil && bytes.Contains(stack, []byte("erofs_kill_sb")) && bytes.Contains(stack, []byte("folio")) {
			return true
		}
	}
	return false
}

// `lighter release` is refused while the node runs. After the node's end it unmounts all mounts of
// the node. The next node does not know the user-facing ones.
func TestRelease(t *testing.T) {
	d := startNode(t, newRoot(t), "--address", "")
	dir := t.TempDir()
	run(t, "mount", "--root", d.root, "tools:1", dir).good()
	shows(t, dir)
	run(t, "release", "--root", d.root).bad(1, "a node runs", "stop it first")
	shows(t, dir)
	d.end(syscall.SIGKILL)
	run(t, "release", "--root", d.root).good()
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(table), d.root) || strings.Contains(string(table), dir) {
		t.Errorf("mounts are left after release (%v):\n%s", err, table)
	}
	d.start()
	if text := run(t, "status", "--root", d.root).good(); strings.Contains(text, dir) {
		t.Errorf("the next node's status shows %s, which was unmounted:\n%s", dir, text)
	}
}
