//go:build runtimes

package docker

import (
	"os"
	"strconv"
	"testing"

	"lighter/test/testkit/eventually"
	"lighter/test/testkit/site"
)

// A container goes on running, and reads what it has not read yet, whichever of the three daemons
// is killed and started again.
func TestRestarts(t *testing.T) {
	ref := site.Reference("base")
	shared.pull(t, ref)
	c := shared.create(t, ref, "sleep", "infinity")
	c.start(t)
	var before, after struct {
		State struct {
			Running bool
			Pid     int
		}
	}
	c.get(t, "/containers/"+c.id+"/json", &before)
	machine := shared.Site.Machine
	for _, restart := range []struct {
		what string
		run  func() error
		read string // a file that nobody has read before
	}{
		{"dockerd", func() error { shared.Daemon.Kill(); return shared.Start(t.Context()) }, "/usr/bin/perl"},
		{"containerd", func() error { return machine.RestartContainerd(t.Context()) }, "/usr/bin/apt-get"},
		{"the node", func() error { return machine.RestartNode(t.Context()) }, "/usr/bin/find"},
	} {
		if err := restart.run(); err != nil {
			t.Fatalf("restart %s: %v", restart.what, err)
		}
		// containerd's restart ends dockerd's connection, which comes back by itself.
		eventually.Holds(t, "an exec after the restart of "+restart.what, func() bool {
			_, err := c.Exec(t.Context(), c.id, "sha256sum", restart.read)
			return err == nil
		})
		c.get(t, "/containers/"+c.id+"/json", &after)
		if !after.State.Running || after.State.Pid != before.State.Pid {
			t.Errorf("after the restart of %s: got %+v, want the same process %d", restart.what, after,
				before.State.Pid)
		}
	}
	if _, err := os.Stat("/proc/" + strconv.Itoa(before.State.Pid)); err != nil {
		t.Error(err)
	}
	if out := shared.run(t, ref, "echo", "after"); out != "after\n" {
		t.Errorf("a further container printed %q", out)
	}
	if err := c.remove(t.Context()); err != nil {
		t.Error(err)
	}
}
