//go:build e2e

package node

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"lighter/test/testkit/site"
)

// A temporary error during a takeover does not affect containers: the node ends, and the next one
// takes over.
func TestTakeOverFailsForNow(t *testing.T) {
	d := startNode(t, newRoot(t), "--address", "")
	dir, merged := used(t, d)
	d.end(syscall.SIGKILL)
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		got, err := os.ReadFile(filepath.Join(merged, "large"))
		if err == nil && !bytes.Equal(got, large) {
			err = errors.New("the read returned wrong bytes")
		}
		read <- err
	}()
	fails := func(cause string, prefix ...string) {
		t.Helper()
		r := runAs(t, prefix, "node", "--root", d.root, "--address", "")
		for _, word := range []string{cause, "stay kept", "lighter release"} {
			if r.code != 1 || !strings.Contains(r.stderr, word) {
				t.Errorf("exit code %d, want 1 and an error that contains %q: %s", r.code, word, r.stderr)
			}
		}
	}
	keeper := keeperOf(t, d.root)
	if err := syscall.Kill(keeper, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	fails("timeout")
	if err := syscall.Kill(keeper, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// The node cannot read the list of mounts.
	fails("mountinfo", "unshare", "--mount", "--propagation", "private",
		"sh", "-c", `mount --bind /proc/$$/mem /proc/$$/mountinfo && exec "$@"`, "sh")
	select {
	case err := <-read:
		t.Fatalf("the read ended before there was a node: %v", err)
	default:
	}
	d.start()
	if err := <-read; err != nil {
		t.Error(err)
	}
	if !strings.Contains(d.said(), "are taken over") {
		t.Errorf("the node's log does not say that mounts are taken over:\n%s", d.said())
	}
	shows(t, dir)
	run(t, "unmount", "--root", d.root, dir).good()
}

// keeperOf returns the process ID of the keeper of a node's root.
func keeperOf(t *testing.T, root string) (pid int) {
	t.Helper()
	pids, err := site.Keepers(root)
	if err != nil || len(pids) == 0 {
		t.Fatalf("no keeper runs for %s (%v)", root, err)
	}
	return pids[len(pids)-1]
}
