package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lighter/durable"
)

// A lock is taken from nobody but a process that is dead, and known to be.
func TestLockOfTheDead(t *testing.T) {
	dead := exec.Command("true")
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dead.Wait() }() // until then its number is its own
	for pidState(t, dead.Process.Pid) != "Z" {
	}
	for _, c := range []struct {
		said      string
		inherited bool
	}{
		{fmt.Sprint(dead.Process.Pid, " ", pidNamespace()), true},
		{fmt.Sprint(dead.Process.Pid, " pid:[1]"), false}, // somebody else's number
		{fmt.Sprint(dead.Process.Pid), false},
		{fmt.Sprint(os.Getpid(), " ", pidNamespace()), false},
		{"", false},
	} {
		root := t.TempDir()
		held, inherited, err := lockRoot(root, &durable.Leftovers{}) // by whoever hangs
		if err != nil || inherited {
			t.Fatal(inherited, err)
		}
		path := filepath.Join(root, "lock")
		if !c.inherited && isDead(path) {
			t.Error("this process is dead")
		}
		if err := os.WriteFile(path, []byte(c.said), 0o600); err != nil {
			t.Fatal(err)
		}
		lock, inherited, err := lockRoot(root, &durable.Leftovers{})
		if inherited != c.inherited || (err == nil) != c.inherited {
			t.Errorf("%q: inherited %v, %v", c.said, inherited, err)
		}
		if err == nil {
			if _, _, err := lockRoot(root, &durable.Leftovers{}); err == nil || !strings.Contains(err.Error(), "in use") {
				t.Errorf("taken twice: %v", err)
			}
			lock.Close()
		}
		held.Close()
	}
}

func pidState(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), ") ")
	return after[:1]
}
