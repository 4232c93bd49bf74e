// Package unprivileged makes a user without privileges, whom only the mount namespace of a test
// knows.
package unprivileged

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// id is the user's number, and that of their group.
const id = 1234

// New makes the user joe until the test ends, with 65,536 further users and groups for user
// namespaces. joe's home and runtime directory are below dir, which joe can reach. New returns the
// beginning of a command line that runs a program as joe.
func New(t *testing.T, dir string) (as []string) {
	t.Helper()
	home, run := filepath.Join(dir, "home"), filepath.Join(dir, "run")
	for _, dir := range []string{home, run} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, id, id); err != nil {
			t.Fatal(err)
		}
	}
	for file, line := range map[string]string{
		"/etc/passwd": fmt.Sprintf("joe:x:%d:%d::%s:/bin/sh\n", id, id, home),
		"/etc/group":  fmt.Sprintf("joe:x:%d:\n", id),
		"/etc/shadow": "joe:*:19000:0:99999:7:::\n", "/etc/subuid": "joe:200000:65536\n",
		"/etc/subgid": "joe:200000:65536\n",
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		Hide(t, dir, file, string(text)+line)
	}
	return []string{"setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", "env", "-C", "/", "-i",
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home, "XDG_RUNTIME_DIR=" + run, "USER=joe"}
}

// Hide shows another text in place of a file of the machine until the test ends. The text is stored
// in dir.
func Hide(t *testing.T, dir, file, text string) {
	t.Helper()
	own := filepath.Join(dir, filepath.Base(file))
	if err := os.WriteFile(own, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(own, file, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(file, unix.MNT_DETACH) })
}
