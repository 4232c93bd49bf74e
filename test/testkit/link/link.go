// Package link simulates the latency of a long network path on one machine. A TCP proxy forwards
// each byte half a round trip after it arrived, in both directions. The first bytes that a client
// sends take one more round trip, like a TCP handshake.
//
// The proxy does not limit the bandwidth: the buffer of one direction (see the constants) can have
// more bytes in flight than a link of 1 Gbit/s transfers in 25 ms. The proxy simulates neither
// packet loss nor TCP slow start, so a real link is slower in its first round trips. Timers fire
// within about 0.1 ms. BenchmarkProxy measures the CPU time.
package link

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxConnections = 4096      // at once; further clients wait to be accepted
	minBuffer      = 64 << 10  // guaranteed buffer of one direction of a connection, in bytes
	maxBuffer      = 8 << 20   // largest buffer of one direction of a connection
	sharedBuffer   = 256 << 20 // for the buffers of all connections, in addition to minBuffer of each
)

// dialTimeout bounds the connection to a server.
const dialTimeout = 10 * time.Second

// Proxy forwards TCP connections with a delay.
type Proxy struct {
	rtt    atomic.Int64
	shared atomic.Int64 // bytes of sharedBuffer that are free
	slots  chan struct{}
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// New returns a proxy that forwards nothing yet. The caller closes it.
func New(rtt time.Duration) *Proxy {
	p := &Proxy{slots: make(chan struct{}, maxConnections)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.shared.Store(sharedBuffer)
	p.SetRTT(rtt)
	return p
}

// SetRTT changes the round-trip time, also of open connections. Bytes in flight keep the previous
// round-trip time.
func (p *Proxy) SetRTT(rtt time.Duration) { p.rtt.Store(int64(rtt)) }

func (p *Proxy) roundTrip() time.Duration { return time.Duration(p.rtt.Load()) }

// Forward forwards the listener's connections to a server, until Close, which closes the listener.
func (p *Proxy) Forward(listener net.Listener, to string) {
	p.work.Go(func() {
		<-p.ctx.Done()
		listener.Close() // so that Accept returns
	})
	p.work.Go(func() {
		for {
			select {
			case p.slots <- struct{}{}:
			case <-p.ctx.Done():
				return
			}
			client, err := listener.Accept()
			if err != nil {
				return // the listener is closed
			}
			p.work.Go(func() {
				defer func() { <-p.slots }()
				p.serve(client, to)
			})
		}
	})
}

// Close ends all connections and waits for their goroutines.
func (p *Proxy) Close() {
	p.cancel()
	p.work.Wait()
}

// serve forwards one connection until both sides have closed it, or one side fails.
func (p *Proxy) serve(client net.Conn, to string) {
	defer client.Close()
	// The kernel has already accepted the connection. On a real path the SYN-ACK would still be in
	// flight.
	connected := time.Now().Add(p.roundTrip())
	dialer := net.Dialer{Timeout: dialTimeout}
	server, err := dialer.DialContext(p.ctx, "tcp", to)
	if err != nil {
		return // the client sees the connection end
	}
	defer server.Close()
	end := context.AfterFunc(p.ctx, func() { client.Close(); server.Close() })
	defer end()
	var both sync.WaitGroup
	for _, c := range []struct {
		from, to net.Conn
		earliest time.Time
	}{{client, server, connected}, {server, client, time.Time{}}} {
		both.Go(func() {
			if err := p.forward(c.from, c.to, c.earliest); err != nil {
				client.Close() // so that both directions end
				server.Close()
			}
		})
	}
	both.Wait()
}

// forward moves the bytes of one direction. Bytes that arrive before earliest count as if they
// arrived at earliest.
func (p *Proxy) forward(from, to net.Conn, earliest time.Time) error {
	d := newDirection(p)
	defer d.release()
	var filling sync.WaitGroup
	filling.Go(func() { d.receive(from, earliest) })
	err := d.send(to)
	if err != nil {
		from.Close() // so that receive returns
	}
	d.stop()
	filling.Wait()
	return err
}

// receive reads bytes into the buffer while it has free space.
func (d *direction) receive(from net.Conn, earliest time.Time) {
	for {
		space := d.space()
		if space == nil {
			return
		}
		n, err := from.Read(space)
		received := time.Now()
		if received.Before(earliest) {
			received = earliest
		}
		d.add(n, received.Add(d.proxy.roundTrip()/2), err)
		if err != nil {
			return
		}
	}
}

// send writes bytes when they are due, until the sender has closed its side.
func (d *direction) send(to net.Conn) error {
	clock, err := newClock()
	if err != nil {
		return err
	}
	defer clock.close()
	end := context.AfterFunc(d.proxy.ctx, clock.close) // Close drops bytes in flight
	defer end()
	for {
		due, wait, err := d.next()
		switch {
		case errors.Is(err, io.EOF):
			return to.(*net.TCPConn).CloseWrite()
		case err != nil:
			return err
		case wait > 0:
			if err := clock.wait(wait); err != nil {
				return err
			}
			continue
		}
		n, err := to.Write(due)
		d.advance(n)
		if err != nil {
			return err
		}
	}
}
