package hub

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// counted counts the connections that a server has taken, and those that are open.
type counted struct{ taken, open atomic.Int32 }

func (c *counted) server(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("[]")) }))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			c.taken.Add(1)
			c.open.Add(1)
		case http.StateClosed:
			c.open.Add(-1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// Connections that are ready are used before others are made, there are never more of
// them than maxSpares, none are made that nobody wanted, and what nobody uses is closed.
func TestConnectionsAreReady(t *testing.T) {
	var conns counted
	c := clientOf(t, Options{URL: conns.server(t).URL})
	c.dialer.time = time.Hour
	if c.dialer.ready(maxSpares); conns.taken.Load() != 0 {
		t.Error("connections were made to a hub that nobody has asked for anything")
	}
	ask := func(n int) {
		var asking sync.WaitGroup
		for range n {
			asking.Go(func() {
				if _, err := c.Images(t.Context(), ""); err != nil {
					t.Error(err)
				}
			})
		}
		asking.Wait()
	}
	spares := func() []*spare {
		c.dialer.mu.Lock()
		defer c.dialer.mu.Unlock()
		return slices.Clone(c.dialer.spares)
	}
	ask(1)
	c.dialer.ready(2 * maxSpares)
	await(t, "they are not made", func() bool { return len(spares()) == maxSpares && conns.taken.Load() == 1+maxSpares })
	first := spares()[0]
	c.dialer.expire(first)
	c.dialer.ready(maxSpares)
	if got := spares(); len(got) != maxSpares-1 || slices.Contains(got, first) {
		t.Errorf("%d are ready after one has expired that nobody wanted", len(got))
	}
	ask(maxSpares / 2)
	if taken := conns.taken.Load(); taken != 1+maxSpares {
		t.Errorf("%d connections: it made more although some were ready", taken)
	}
	for _, s := range spares() {
		c.dialer.expire(s)
	}
	await(t, "one is open that has expired", func() bool { return len(spares()) == 0 && conns.open.Load() <= 1+maxSpares/2 })
	ask(1)
}

// Who has to connect for a look-up has a second connection for what he asks for next, and
// nobody else has.
func TestLookUpsConnectTwice(t *testing.T) {
	var conns counted
	c := clientOf(t, Options{URL: conns.server(t).URL})
	c.dialer.time = time.Hour
	s := NewOrigins(slog.New(slog.DiscardHandler), c)
	ask := func(lookUp bool, want int32) {
		t.Helper()
		if lookUp {
			_, _ = s.Chain(t.Context(), "chain") // the server answers something else
		} else if _, err := s.Images(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		await(t, fmt.Sprintf("%d connections, %d are expected", conns.taken.Load(), want), func() bool {
			c.dialer.mu.Lock()
			defer c.dialer.mu.Unlock()
			return c.dialer.making == 0 && conns.taken.Load() == want
		})
	}
	ask(false, 1)
	c.http.CloseIdleConnections()
	ask(true, 3)
	c.http.CloseIdleConnections()
	ask(false, 3) // with the second one
	c.http.CloseIdleConnections()
	ask(false, 4)
}

// A connection that the hub has closed meanwhile is not used.
func TestSparesThatWereClosed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	address := listener.Addr().String()
	taken := make(chan net.Conn, maxSpares+2)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			taken <- conn
		}
	}()
	d := newDialer("", true)
	dial := func() net.Conn {
		conn, err := d.dial(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	defer dial().Close()
	d.ready(maxSpares)
	closed := map[string]bool{}
	for range maxSpares + 1 {
		conn := <-taken
		closed[conn.RemoteAddr().String()] = true
		conn.Close()
	}
	await(t, "they are not made", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.making == 0
	})
	conn := dial()
	defer conn.Close()
	if closed[conn.LocalAddr().String()] {
		t.Error("a connection was used that the hub had closed")
	}
}

// A hub that is not there costs nothing but tries.
func TestReadyWithoutAHub(t *testing.T) {
	d := newDialer("", true)
	if conn, err := d.dial(t.Context(), "tcp", "127.0.0.1:1"); err == nil {
		conn.Close()
		t.Error("somebody answers")
	}
	d.ready(maxSpares)
	await(t, "they are still being made", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.making == 0 && len(d.spares) == 0
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.makeLocked(maxSpares); d.making > 0 {
		t.Error("it is tried again at once")
	}
}
