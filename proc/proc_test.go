package proc

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
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
