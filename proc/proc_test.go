package proc

import (
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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

// Listener finds the process that listens, and tells why it finds none.
func TestListener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if _, err := Listener(t.Context(), path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a socket: got error %v, want that it does not exist", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if pid, err := Listener(t.Context(), path); err != nil || pid != os.Getpid() {
		t.Errorf("got %d, %v; want process %d", pid, err, os.Getpid())
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	listener.Close()
	if _, err := Listener(t.Context(), path); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("without a listener: got error %v, want ECONNREFUSED", err)
	}
}

// A process is listed, and its program and arguments are known, also after its file was deleted.
func TestCommand(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "sleep")
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	child := exec.Command(path, "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	for _, deleted := range []bool{false, true} {
		if deleted {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		pid := child.Process.Pid
		if all, err := All(); err != nil || !slices.Contains(all, pid) || !slices.Contains(all, os.Getpid()) {
			t.Errorf("got the processes %v, %v; want %d and %d among them", all, err, pid, os.Getpid())
		}
		if got := Children(os.Getpid()); !slices.Contains(got, pid) || slices.Contains(got, os.Getpid()) {
			t.Errorf("got the children %v, want %d among them, and not this process", got, pid)
		}
		if name, args := Program(pid), Arguments(pid); name != "sleep" || !slices.Equal(args, []string{"60"}) {
			t.Errorf("deleted %t: got program %q with arguments %q", deleted, name, args)
		}
		if got, err := os.ReadFile(Executable(pid)); err != nil || !bytes.Equal(got, text) {
			t.Errorf("deleted %t: got %d bytes of the program, %v; want %d", deleted, len(got), err, len(text))
		}
	}
	if name, args, got := Program(1<<30), Arguments(1<<30), Children(1<<30); name != "" || args != nil || got != nil {
		t.Errorf("a process that does not exist: got program %q with arguments %q, and children %v", name, args, got)
	}
}

// A process started before a file's change if one of the files was changed after the start.
func TestStartedBefore(t *testing.T) {
	pid := os.Getpid()
	started, err := Started(pid)
	if err != nil {
		t.Fatal(err)
	}
	old, file := filepath.Join(t.TempDir(), "old"), filepath.Join(t.TempDir(), "file")
	for _, path := range []string{old, file} {
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const tick = time.Second / ticks
	for after, want := range map[time.Duration]bool{time.Hour: true, 2 * tick: true, -2 * tick: false,
		-time.Hour: false} {
		if err := errors.Join(os.Chtimes(old, time.Time{}, started.Add(-time.Hour)),
			os.Chtimes(file, time.Time{}, started.Add(after))); err != nil {
			t.Fatal(err)
		}
		if got := StartedBefore(pid, old, file+".missing", file); got != want {
			t.Errorf("changed %v after the start: got %t", after, got)
		}
	}
	if StartedBefore(1<<30, file) {
		t.Error("a process that does not exist counts as started")
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
