package hub

import (
	"net"
	"net/http"
	"sync"
)

// connections bound how many connections of a server are open at a time. The kernel
// keeps others waiting.
type connections struct {
	net.Listener
	open chan struct{} // has an element for each
	end  sync.Once
	over chan struct{} // closed with the listener
}

// newConnections has a server accept at most so many connections of a listener.
func newConnections(server *http.Server, listener net.Listener, most int) *connections {
	c := &connections{Listener: listener, open: make(chan struct{}, most), over: make(chan struct{})}
	// Connections stay as they are: what is wrapped cannot be sent files to by the kernel.
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			<-c.open
		}
	}
	return c
}

// Accept waits until there is room for a connection, and for one to come.
func (c *connections) Accept() (net.Conn, error) {
	select {
	case c.open <- struct{}{}:
	case <-c.over:
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
	c.end.Do(func() { close(c.over) })
	return c.Listener.Close()
}
