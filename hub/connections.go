package hub

import (
	"net"
	"net/http"
	"sync"
)

// connections is a listener that bounds the open connections of a server. Further connections wait
// in the kernel's queue.
type connections struct {
	net.Listener
	open chan struct{} // has an element for each open connection
	once sync.Once
	done chan struct{} // closed by Close
}

// newConnections returns a listener for a server. It sets the server's ConnState, to count closed
// connections.
func newConnections(server *http.Server, listener net.Listener, limit int) *connections {
	c := &connections{Listener: listener, open: make(chan struct{}, limit), done: make(chan struct{})}
	// Connections are not wrapped: the kernel could not copy files to wrapped ones (sendfile).
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			<-c.open
		}
	}
	return c
}

// Accept waits until fewer connections than the limit are open, then for a connection.
func (c *connections) Accept() (net.Conn, error) {
	select {
	case c.open <- struct{}{}:
	case <-c.done:
		return nil, net.ErrClosed
	}
	conn, err := c.Listener.Accept()
	if err != nil {
		<-c.open
	}
	return conn, err
}

// Close ends Accept.
func (c *connections) Close() error {
	c.once.Do(func() { close(c.done) })
	return c.Listener.Close()
}
