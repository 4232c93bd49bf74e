package socket

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// shortDir is t.TempDir with a short path: the path of a socket is limited to 107 bytes.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// must returns a function that fails the test if a call returned an error.
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestListen(t *testing.T) {
	path := filepath.Join(shortDir(t), "s.sock")
	first := must[net.Listener](t)(Listen(t.Context(), path))
	if mode := must[fs.FileInfo](t)(os.Lstat(path)).Mode(); mode.Perm() != 0o600 || mode.Type() != fs.ModeSocket {
		t.Errorf("mode %v, want 0600", mode)
	}
	if _, err := Listen(t.Context(), path); err == nil {
		t.Error("replaced a socket with a live listener")
	}
	conn := must[net.Conn](t)(net.Dial("unix", path))
	conn.Close()

	// A killed process leaves a socket without a listener.
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	first.Close()
	second := must[net.Listener](t)(Listen(t.Context(), path))
	second.Close()

	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), path); err == nil {
		t.Error("replaced a file that is not a socket")
	}
	if b := must[[]byte](t)(os.ReadFile(path)); string(b) != "precious" {
		t.Errorf("the file contains %q", b)
	}
}

// The mode of the socket does not depend on the umask.
func TestListenWithoutUmask(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	path := filepath.Join(shortDir(t), "s.sock")
	listener := must[net.Listener](t)(Listen(t.Context(), path))
	defer listener.Close()
	if mode := must[fs.FileInfo](t)(os.Lstat(path)).Mode().Perm(); mode != 0o600 {
		t.Errorf("mode %v, want 0600", mode)
	}
}
