package containerd

import (
	"fmt"
	"log/slog"
	"net"
	"sync"

	"lighter/proc"
)

// OneClient returns a listener that accepts the connections of one process at a time. While a
// connection of that process is open, it closes those of others at once, and logs that. So two
// programs that are configured with the same socket cannot delete each other's snapshots.
func OneClient(listener net.Listener, log *slog.Logger) net.Listener {
	return &oneClient{Listener: listener, log: log, processOf: processOf}
}

type oneClient struct {
	net.Listener
	log       *slog.Logger
	processOf func(net.Conn) (int, error)

	mu      sync.Mutex
	process int // whose connections are open
	open    int // number of open connections
}

// processOf returns the process at the other end of a connection of a Unix socket.
func processOf(conn net.Conn) (int, error) {
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, fmt.Errorf("a connection of type %T", conn)
	}
	cred, err := proc.Peer(unix)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// Accept waits for the next connection that is not closed at once.
func (l *oneClient) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		process, err := l.processOf(conn)
		if err == nil {
			err = l.admit(process)
		}
		if err == nil {
			return &admitted{Conn: conn, listener: l}, nil
		}
		l.log.Warn("refused a client of the snapshotter", "process", process, "err", err)
		_ = conn.Close() // nothing was sent
	}
}

func (l *oneClient) admit(process int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open > 0 && l.process != process {
		return fmt.Errorf("process %d is connected: two clients would delete each other's snapshots", l.process)
	}
	l.process = process
	l.open++
	return nil
}

// admitted is a connection that was accepted.
type admitted struct {
	net.Conn
	listener *oneClient
	once     sync.Once
}

func (c *admitted) Close() error {
	c.once.Do(func() {
		c.listener.mu.Lock()
		defer c.listener.mu.Unlock()
		c.listener.open--
	})
	return c.Conn.Close()
}
