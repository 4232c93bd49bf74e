package origin

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"lighter/wire/client"
)

// dialer connects to an origin, or to the proxy before it. If the round trip is long, it keeps
// spare connections open, because a request that waits for a new connection takes twice as long.
// With TLS all requests share one connection, so there are no spares.
type dialer struct {
	allowSpares         bool
	connected, received lastTime
	spareTime           time.Duration // the constant; tests have other values

	mu      sync.Mutex // guards what follows
	address string     // the origin's address; dial is also called with addresses of redirects
	dialed  bool       // a plain-TCP dial was made since the last connectIfWanted
	opening int        // spares that are being opened
	failed  time.Time  // when a spare last could not be opened
	lookups int        // lookups in flight: each is followed by two requests (index, locations)
	spares  []*spare   // the newest last
}

func newDialer() dialer {
	return dialer{connected: lastTime{origin: time.Now()}, received: lastTime{origin: time.Now()}, spareTime: spareTime}
}

// spare is an open connection that carries no request yet.
type spare struct {
	conn   *net.TCPConn
	expire *time.Timer
}

// dial returns a spare connection, or opens one.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if network == "tcp" {
		spare := d.takeSpare(address)
		d.openPair(address)
		if spare != nil {
			return spare, nil
		}
	}
	conn, err := d.connect(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return watchedConn{conn, &d.received}, nil
}

func (d *dialer) connect(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := client.Dial(ctx, network, address)
	if err == nil {
		d.connected.note()
	}
	return conn, err
}

// lastReceived returns when the origin last took a connection or sent a byte; zero: never.
func (d *dialer) lastReceived() time.Time { return latest(d.connected.at(), d.received.at()) }

// takeSpare returns a spare connection to the address, or nil.
func (d *dialer) takeSpare(address string) net.Conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.address == "" {
		d.address = address
	}
	if d.address != address {
		return nil
	}
	d.dialed = true
	for n := len(d.spares); n > 0; n = len(d.spares) {
		s := d.spares[n-1]
		d.spares = d.spares[:n-1]
		if !s.expire.Stop() {
			continue // d.expire closes it
		}
		if isIdle(s.conn) {
			return watchedConn{s.conn, &d.received}
		}
		s.conn.Close()
	}
	return nil
}

// openPair opens a spare connection while a lookup is in flight, because two requests follow the
// lookup.
func (d *dialer) openPair(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lookups > 0 && d.address == address {
		d.openLocked(1)
	}
}

// isIdle reports whether the peer has neither closed the connection nor sent anything. A request
// on a closed connection would fail and count against the hub.
func isIdle(conn *net.TCPConn) bool {
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

// connectIfWanted opens spares until there are n, if dial was called for plain TCP since the last
// connectIfWanted. It does not wait.
func (d *dialer) connectIfWanted(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dialed {
		d.dialed = false
		d.openLocked(n)
	}
}

// expectPair is called before a lookup, because two requests follow it: for the index and its
// locations. The caller calls done when the lookup is answered.
func (d *dialer) expectPair() (done func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lookups++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.lookups--
	}
}

// connectForStart opens spares for the requests of a start, if the path is long.
func (o *origin) connectForStart() {
	if o.path.isLong() {
		o.dialer.mu.Lock()
		defer o.dialer.mu.Unlock()
		o.dialer.openLocked(startSpares)
	}
}

// openLocked opens spares until there are n, or maxSpares. It does not wait for them. Each is used
// within spareTime, or closed. mu is held.
func (d *dialer) openLocked(n int) {
	if !d.allowSpares || d.address == "" || time.Since(d.failed) < d.spareTime {
		return
	}
	for ; d.opening+len(d.spares) < min(n, maxSpares); d.opening++ {
		address := d.address
		go func() {
			conn, err := d.connect(context.Background(), "tcp", address)
			d.addSpare(conn, err)
		}()
	}
}

func (d *dialer) addSpare(conn net.Conn, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opening--
	tcp, ok := conn.(*net.TCPConn)
	if err != nil || !ok {
		d.failed = time.Now()
		return // a request that needs a connection returns the error
	}
	s := &spare{conn: tcp}
	s.expire = time.AfterFunc(d.spareTime, func() { d.expire(s) })
	d.spares = append(d.spares, s)
}

func (d *dialer) expire(s *spare) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spares = slices.DeleteFunc(d.spares, func(other *spare) bool { return other == s })
	s.conn.Close()
}
