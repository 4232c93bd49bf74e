//go:build e2e

package soak

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"lighter/node/control"
)

// A keeper is killed while its daemon runs. The daemon starts another keeper. So when the daemon is
// killed later, reads wait for the next daemon.
func TestKeeperAloneIsKilled(t *testing.T) {
	s, c := contained(t)
	root := s.Machine.NodeRoot()
	for round := range int64(times(2, 5)) {
		if err := syscall.Kill(keeperOf(t, root), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
			status, err := control.New(root).Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if status.Keeper.Replaced == 1 && status.Keeper.Error == "" {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("round %d: the keeper's status: %+v, want one replacement, no error", round, status.Keeper)
			}
		}
		s.Machine.KillNode()
		read := readAll(filepath.Join(c.Root, "data"))
		if err := s.Machine.StartNode(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-read; err != nil {
			t.Fatalf("round %d: a read while the daemon was killed and started again: %v", round, err)
		}
	}
	if err := c.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// keeperOf returns the PID of the keeper of a node's root. (The peer credentials of the keeper's
// socket would name the daemon that started the keeper.)
func keeperOf(t *testing.T, root string) (pid int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		line, _ := os.ReadFile(file) // the process may just have ended
		if bytes.HasSuffix(line, []byte("\x00keeper\x00"+root+"\x00")) {
			pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(file)))
		}
	}
	if pid == 0 {
		t.Fatalf("found no keeper process of root %s", root)
	}
	return pid
}
