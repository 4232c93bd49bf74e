package containerd

import (
	"io"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
)

// While a process is connected, the connections of another one are closed at once. Afterwards the
// other one is accepted.
func TestOneClientAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	inner, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var process atomic.Int64 // of the next connection
	listener := &oneClient{Listener: inner, log: discard, processOf: func(conn net.Conn) (int, error) {
		if own, err := processOf(conn); err != nil || own == 0 {
			t.Errorf("process of a connection: %d, %v", own, err)
		}
		return int(process.Load()), nil
	}}
	defer listener.Close()
	accepted := make(chan net.Conn)
	connect := func(of int64) net.Conn {
		t.Helper()
		process.Store(of)
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	accept := func() {
		conn, err := listener.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- conn
	}
	go accept()
	connect(1)
	first := <-accepted
	go accept()
	connect(1)
	second := <-accepted
	go accept()
	if _, err := connect(2).Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("read on the connection of another process: %v, want that it is closed", err)
	}
	for _, conn := range []net.Conn{first, second, second} { // closing twice counts once
		_ = conn.Close()
	}
	connect(2)
	<-accepted
}
