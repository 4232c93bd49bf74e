//go:build e2e

package directory

import (
	"bufio"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// A namespace belongs to the user who has made it, or the outermost one around it, whatever numbers
// its processes have.
func TestNamespaceUser(t *testing.T) {
	numbers := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 200000, Size: 65536}}
	below := syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: numbers, GidMappings: numbers,
		Credential: &syscall.Credential{Uid: 33, NoSetGroups: true}}
	for _, c := range []struct {
		user uint32
		attr syscall.SysProcAttr
		argv []string
	}{
		{1234, syscall.SysProcAttr{}, []string{"setpriv", "--reuid=1234", "unshare", "-Ur"}},
		{1234, syscall.SysProcAttr{}, []string{"setpriv", "--reuid=1234", "unshare", "-Ur", "unshare", "-Ur"}},
		{0, below, []string{"unshare", "-U"}}, // 200033 has made the inner one
	} {
		cmd := exec.Command(c.argv[0], append(c.argv[1:], "sh", "-c", "echo; read line")...)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &c.attr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		user, err := requester{thread: uint32(cmd.Process.Pid), uid: 200033}.user()
		if err != nil || user != c.user {
			t.Errorf("%s: got user %d, %v; want %d", strings.Join(c.argv, " "), user, err, c.user)
		}
		_, _ = in.Close(), cmd.Wait() // read fails
	}
	if _, err := namespaceUser(1); err == nil {
		t.Error("the namespace of the node itself is below no other")
	}
}
