//go:build e2e

package soak

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"lighter/node/control"
	"lighter/test/testkit/site"
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

// keeperOf returns the PID of the keeper of a node's root.
func keeperOf(t *testing.T, root string) (pid int) {
	t.Helper()
	pids, err := site.Keepers(root)
	if err != nil || len(pids) == 0 {
		t.Fatalf("no keeper runs for %s (%v)", root, err)
	}
	return pids[len(pids)-1]
}
