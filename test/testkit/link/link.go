// Package link promises the latency of a long way on one machine: a proxy for TCP
// that hands every byte on half a round trip after it came, in both directions,
// and takes one round trip more for the first bytes of a connection, as TCP does.
//
// It limits no bandwidth: what bounds it (see the constants) is beyond what 1 Gbit/s
// has on its way in 25 ms. It does not model loss, nor how TCP finds the speed of
// a new connection: a real link is slower in its first round trips. Its clock
// wakes within some 0.1 ms; what it costs, BenchmarkProxy says.
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
	maxConnections = 4096      // more wait to be accepted
	leastRoom      = 64 << 10  // bytes on their way in one direction of a connection: so many always,
	mostRoom       = 8 << 20   // so many at the most,
	sharedRoom     = 256 << 20 // and so many of all that have more than the least
)

// dialTimeout is how long a server may take to accept.
const dialTimeout = 10 * time.Second

// Proxy delays what it forwards.
type Proxy struct {
	rtt    atomic.Int64
	shared atomic.Int64 // what is left of sharedRoom
	turns  chan struct{}
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// New returns a proxy that forwards nothing yet. The caller closes it.
func New(rtt time.Duration) *Proxy {
	p := &Proxy{turns: make(chan struct{}, maxConnections)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.shared.Store(sharedRoom)
	p.SetRTT(rtt)
	return p
}

// SetRTT changes the round-trip time, also for what is connected; what is on its
// way keeps the former one.
func (p *Proxy) SetRTT(rtt time.Duration) { p.rtt.Store(int64(rtt)) }

func (p *Proxy) roundTrip() time.Duration { return time.Duration(p.rtt.Load()) }

// Forward forwards the listener's connections to a server, until Close, which
// closes the listener.
func (p *Proxy) Forward(listener net.Listener, to string) {
	p.work.Go(func() {
		<-p.ctx.Done()
		listener.Close() // nothing of it is wanted any more
	})
	p.work.Go(func() {
		for {
			select {
			case p.turns <- struct{}{}:
			case <-p.ctx.Done():
				return
			}
			client, err := listener.Accept()
			if err != nil {
				return // it is closed
			}
			p.work.Go(func() {
				defer func() { <-p.turns }()
				p.carry(client, to)
			})
		}
	})
}

// Close ends all connections and waits for that.
func (p *Proxy) Close() {
	p.cancel()
	p.work.Wait()
}

// carry serves one connection until both sides have ended it, or one fails.
func (p *Proxy) carry(client net.Conn, to string) {
	defer client.Close()
	// The client takes itself for connected; in truth the answer to its SYN is on its way.
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
	for _, way := range []struct {
		from, to net.Conn
		earliest time.Time
	}{{client, server, connected}, {server, client, time.Time{}}} {
		both.Go(func() {
			if err := p.delay(way.from, way.to, way.earliest); err != nil {
				client.Close() // both ways end
				server.Close()
			}
		})
	}
	both.Wait()
}

// delay moves one direction's bytes. Nothing is taken to have come before earliest.
func (p *Proxy) delay(from, to net.Conn, earliest time.Time) error {
	w := newWay(p)
	defer w.giveBack()
	var filling sync.WaitGroup
	filling.Go(func() { w.fill(from, earliest) })
	err := w.empty(to)
	if err != nil {
		from.Close() // or fill would wait for more
	}
	w.stop()
	filling.Wait()
	return err
}

// fill takes what comes, as far as there is room.
func (w *way) fill(from net.Conn, earliest time.Time) {
	for {
		room := w.room()
		if room == nil {
			return
		}
		n, err := from.Read(room)
		came := time.Now()
		if came.Before(earliest) {
			came = earliest
		}
		w.add(n, came.Add(w.proxy.roundTrip()/2), err)
		if err != nil {
			return
		}
	}
}

// empty hands on what is due, until the sender has ended.
func (w *way) empty(to net.Conn) error {
	clock, err := newClock()
	if err != nil {
		return err
	}
	defer clock.close()
	end := context.AfterFunc(w.proxy.ctx, clock.close) // what is on its way need not arrive any more
	defer end()
	for {
		due, wait, err := w.next()
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
		w.sent(n)
		if err != nil {
			return err
		}
	}
}
