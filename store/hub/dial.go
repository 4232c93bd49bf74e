package hub

import (
	"context"
	"net"
	"sync"
	"time"
)

const (
	// maxSpares bounds the connections that are made before anybody asks for them,
	// spareTime for how long one waits to be asked for: hubs and proxies end one that
	// is silent from its beginning, after some 10 s.
	maxSpares = 24
	spareTime = 4 * time.Second
)

// dialer connects to a hub, or to the proxy before it. Where a round trip is long it
// keeps some connections ready: who has to make one first waits twice as long.
type dialer struct {
	socket     string // path of a Unix socket; empty: as the URL says
	took, sent last   // a connection; bytes

	mu      sync.Mutex // guards what follows
	address string     // to which was connected last
	making  int        // spares on their way
	spares  []*spare   // the last is the newest
}

// spare is a connection that nobody uses yet.
type spare struct {
	conn    net.Conn
	address string
	expire  *time.Timer
}

// dial connects, or takes a connection that is there.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if d.socket != "" {
		network, address = "unix", d.socket
	}
	if conn := d.takeSpare(address); conn != nil {
		return conn, nil
	}
	return d.connect(ctx, network, address)
}

func (d *dialer) connect(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.took.note()
	return heardConn{conn, &d.sent}, nil
}

// heard tells when something came of the hub last: a connection that it took, or a
// byte; zero: never.
func (d *dialer) heard() time.Time { return latest(d.took.at(), d.sent.at()) }

// takeSpare returns a connection to the address that is ready, and notes that one was
// wanted; nil: there is none.
func (d *dialer) takeSpare(address string) net.Conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.address = address
	for n := len(d.spares); n > 0; n-- {
		s := d.spares[n-1]
		if s.address == address && s.expire.Stop() {
			d.spares = append(d.spares[:n-1], d.spares[n:]...)
			return s.conn
		}
	}
	return nil
}

// ready has connections made, so that some are there when they are asked for. It does
// not wait: each is somebody's within dialTimeout, or closed after spareTime.
func (d *dialer) ready() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.address == "" || d.socket != "" {
		return
	}
	for ; d.making+len(d.spares) < maxSpares; d.making++ {
		address := d.address
		go func() {
			conn, err := d.connect(context.Background(), "tcp", address)
			d.keep(conn, err, address)
		}()
	}
}

// keep has a connection be ready for a while.
func (d *dialer) keep(conn net.Conn, err error, address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.making--
	if err != nil {
		return // whoever needs one will see
	}
	s := &spare{conn: conn, address: address}
	s.expire = time.AfterFunc(spareTime, func() { d.expire(s) })
	d.spares = append(d.spares, s)
}

func (d *dialer) expire(s *spare) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, other := range d.spares {
		if other == s {
			d.spares = append(d.spares[:i], d.spares[i+1:]...)
			break
		}
	}
	s.conn.Close()
}
