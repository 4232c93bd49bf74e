package proc

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func TestPeer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer, err := Peer(conn.(*net.UnixConn))
	if err != nil || int(peer.Pid) != os.Getpid() || int(peer.Uid) != os.Geteuid() {
		t.Errorf("got %+v, %v; want process %d of user %d", peer, err, os.Getpid(), os.Geteuid())
	}
	conn.Close()
	if _, err := Peer(conn.(*net.UnixConn)); err == nil {
		t.Error("Peer of a closed connection: got no error")
	}
}

// A process that has ended and was not yet waited for is dead. A process that runs is not dead,
// nor is a process that does not exist.
func TestIsDead(t *testing.T) {
	if IsDead(os.Getpid()) {
		t.Error("this process counts as dead")
	}
	child := exec.Command("true")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	for !IsDead(child.Process.Pid) { // until it has ended
	}
	_ = child.Wait()
	if IsDead(child.Process.Pid) {
		t.Error("a process that is gone counts as dead")
	}
}

// A process started between the moment before its start and the moment after, up to a tick of the
// kernel's clock.
func TestStarted(t *testing.T) {
	before := time.Now()
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	after := time.Now()
	defer child.Wait()
	defer child.Process.Kill()
	const tick = 2 * time.Second / ticks
	if at, err := Started(child.Process.Pid); err != nil || at.Before(before.Add(-tick)) || at.After(after.Add(tick)) {
		t.Errorf("got %v, %v; want between %v and %v", at, err, before, after)
	}
	if _, err := Started(1 << 30); err == nil {
		t.Error("a process that does not exist: got no error")
	}
}
