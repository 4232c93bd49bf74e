package database

import (
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A statement that was sent to a host that is gone must end soon. Keepalive probes do not end it,
// because the kernel sends none while data is not acknowledged.
func TestConnectionsEndIfTheHostIsGone(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c, err := dialer.DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for option, want := range map[[2]int]int{
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT}: 20_000,
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE}:      1,
	} {
		got, failed := 0, error(nil)
		err := raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), option[0], option[1]) })
		if err != nil {
			t.Fatal(err)
		}
		if failed != nil || got != want {
			t.Errorf("option %v is %d (%v), want %d", option, got, failed, want)
		}
	}
}
