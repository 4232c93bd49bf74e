package socket

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/socketdir"
)

func TestCheckAddress(t *testing.T) {
	for address, good := range map[string]bool{
		":9470": true, "127.0.0.1:0": true, "[::1]:9470": true, "unix:/run/x.sock": true,
		"": false, "9470": false, "127.0.0.1": false, "127.0.0.1:": false, "unix:x.sock": false,
		"http://127.0.0.1:9470": false, "unix:/" + strings.Repeat("x", MaxPath): false,
	} {
		if err := CheckAddress("listen", address); (err == nil) != good {
			t.Errorf("%q: got %v, want accepted %t", address, err, good)
		}
	}
}

func TestListen(t *testing.T) {
	path := filepath.Join(socketdir.New(t), "s.sock")
	listen := func() net.Listener {
		t.Helper()
		listener, err := Listen(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		return listener
	}
	first := listen()
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Perm() != 0o600 || info.Mode().Type() != fs.ModeSocket {
		t.Errorf("got %v, %v; want a socket with mode 0600", info, err)
	}
	if _, err := Listen(t.Context(), path); err == nil {
		t.Error("a socket with a listener was replaced")
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()

	// A killed process leaves a socket without a listener.
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	first.Close()
	listen().Close()

	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), path); err == nil {
		t.Error("a file was replaced")
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("the file: got %q, %v; want \"precious\"", b, err)
	}
}

// The mode of a socket is 0600, whatever the umask is.
func TestListenWithoutUmask(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	path := filepath.Join(socketdir.New(t), "s.sock")
	listener, err := ListenAddress(t.Context(), unixPrefix+path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v; want mode 0600", info, err)
	}
}
