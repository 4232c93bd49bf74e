package hub

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxSpares bounds the connections that are made before anybody asks for them,
	// spareTime for how long one waits to be asked for: hubs and proxies end one that
	// is silent from its beginning, after some 10 s, and wait for it when they end.
	// startSpares is how many are made for a start of which nothing is known: where many
	// nodes start at once there are too many connections soon.
	maxSpares   = 24
	startSpares = 4
	spareTime   = 2 * time.Second
)

// dialer connects to a hub, or to the proxy before it. Where a round trip is long it
// keeps some connections ready, and of two that will be needed it makes both at once: who has
// to make one first waits twice as long. Over TLS requests share one, and none is made ahead.
type dialer struct {
	socket     string        // path of a Unix socket; empty: as the URL says
	ahead      bool          // connections may be made before anybody needs them
	took, sent last          // a connection; bytes
	time       time.Duration // spareTime, but in tests

	mu      sync.Mutex // guards what follows
	address string     // the first that was connected to: others are where it redirects to
	wanted  bool       // somebody has connected since spares were made
	making  int        // spares on their way
	failed  time.Time  // when one could not be made last
	pairs   int        // those who need a second connection if they need one
	spares  []*spare   // the last is the newest
}

func newDialer(socket string, plain bool) dialer {
	return dialer{socket: socket, ahead: plain && socket == "", took: last{since: time.Now()}, sent: last{since: time.Now()}, time: spareTime}
}

// spare is a connection that nobody uses yet.
type spare struct {
	conn   *net.TCPConn
	expire *time.Timer
}

// dial connects, or takes a connection that is there.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if d.socket != "" {
		network, address = "unix", d.socket
	}
	spare := d.takeSpare(address)
	d.pair(address)
	if spare != nil {
		return spare, nil
	}
	conn, err := d.connect(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return heardConn{conn, &d.sent}, nil
}

func (d *dialer) connect(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext(ctx, network, address)
	if err == nil {
		d.took.note()
	}
	return conn, err
}

// heard tells when something came of the hub last: a connection that it took, or a
// byte; zero: never.
func (d *dialer) heard() time.Time { return latest(d.took.at(), d.sent.at()) }

// takeSpare returns a connection to the address that is ready, and notes that one was
// wanted; nil: there is none.
func (d *dialer) takeSpare(address string) net.Conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.address == "" {
		d.address = address
	}
	if d.address != address {
		return nil
	}
	d.wanted = true
	for n := len(d.spares); n > 0; n = len(d.spares) {
		s := d.spares[n-1]
		d.spares = d.spares[:n-1]
		if !s.expire.Stop() {
			continue // expire closes it
		}
		if isOpen(s.conn) {
			return heardConn{s.conn, &d.sent}
		}
		s.conn.Close()
	}
	return nil
}

// pair has one more connection made if who asks needs two.
func (d *dialer) pair(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pairs > 0 && d.address == address {
		d.makeLocked(1)
	}
}

// isOpen tells whether the other end has neither closed a connection nor said anything
// on it: a request on one that is closed would fail, and the hub be taken for broken.
func isOpen(conn *net.TCPConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var peeked error
	err = raw.Read(func(fd uintptr) bool {
		_, _, peeked = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return true
	})
	return err == nil && errors.Is(peeked, unix.EAGAIN)
}

// ready has connections made if some were wanted since it last did, so that n are
// there when more are. It does not wait: each is somebody's within dialTimeout, or closed
// after spareTime.
func (d *dialer) ready(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wanted {
		d.wanted = false
		d.makeLocked(n)
	}
}

// twice says that who asks now will ask for two things at the same time next: an index
// and locations follow a look-up. done is called when he has his answer.
func (d *dialer) twice() (done func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pairs++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.pairs--
	}
}

// make has connections made until there are n that nobody uses, or maxSpares.
func (d *dialer) make(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.makeLocked(n)
}

func (d *dialer) makeLocked(n int) {
	if !d.ahead || time.Since(d.failed) < d.time {
		return
	}
	for ; d.making+len(d.spares) < min(n, maxSpares); d.making++ {
		address := d.address
		go func() {
			conn, err := d.connect(context.Background(), "tcp", address)
			d.keep(conn, err)
		}()
	}
}

// keep has a connection be ready for a while.
func (d *dialer) keep(conn net.Conn, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.making--
	tcp, ok := conn.(*net.TCPConn)
	if err != nil || !ok {
		d.failed = time.Now()
		return // whoever needs one will see
	}
	s := &spare{conn: tcp}
	s.expire = time.AfterFunc(d.time, func() { d.expire(s) })
	d.spares = append(d.spares, s)
}

func (d *dialer) expire(s *spare) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spares = slices.DeleteFunc(d.spares, func(other *spare) bool { return other == s })
	s.conn.Close()
}
