package takeover

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"lighter/durable"
	"lighter/proc"
)

// Lock takes the lock only from a process that is certainly dead.
func TestLockOfADeadProcess(t *testing.T) {
	dead := exec.Command("true")
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dead.Wait() }() // until then the kernel does not reuse its PID
	for !proc.IsDead(dead.Process.Pid) {
	}
	for _, c := range []struct {
		holder    string
		inherited bool
	}{
		{fmt.Sprint(dead.Process.Pid, " ", pidNamespace()), true},
		{fmt.Sprint(dead.Process.Pid, " pid:[1]"), false}, // a PID in another namespace
		{fmt.Sprint(dead.Process.Pid), false},
		{fmt.Sprint(os.Getpid(), " ", pidNamespace()), false},
		{"", false},
	} {
		root := t.TempDir()
		held, inherited, err := Lock(root, &durable.Leftovers{}) // the lock of a process that hangs
		if err != nil || inherited {
			t.Fatalf("lock a new root: got inherited %t, %v", inherited, err)
		}
		path := LockFile(root)
		if !c.inherited && isDead(path) {
			t.Error("this process counts as dead")
		}
		if err := os.WriteFile(path, []byte(c.holder), 0o600); err != nil {
			t.Fatal(err)
		}
		lock, inherited, err := Lock(root, &durable.Leftovers{})
		if inherited != c.inherited || (err == nil) != c.inherited {
			t.Errorf("holder %q: got inherited %t, %v; want %t", c.holder, inherited, err, c.inherited)
		}
		if err == nil {
			if _, _, err := Lock(root, &durable.Leftovers{}); !errors.Is(err, ErrInUse) {
				t.Errorf("a second lock: got %v, want %v", err, ErrInUse)
			}
			lock.Close()
		}
		held.Close()
	}
}
