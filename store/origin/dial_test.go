package origin

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// testDialer returns a dialer that may open spares.
func testDialer() *dialer {
	d := newDialer()
	d.allowSpares = true
	return &d
}

// counted counts the connections that a server has taken, and those that are open.
type counted struct{ taken, open atomic.Int32 }

func (c *counted) server(t *testing.T) *httptest.Server {
	t.Helper()
	answer := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("[]")) }
	s := httptest.NewUnstartedServer(http.HandlerFunc(answer))
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

// await fails the test with the text what unless is returns true within 10 s.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

// Spares are used before other connections are opened, and closed if no request uses them. There
// are at most maxSpares, and none before the first request.
func TestSpares(t *testing.T) {
	var conns counted
	o := over(t, conns.server(t).URL).all[0]
	d := &o.dialer
	d.spareTime = time.Hour
	if d.connectIfWanted(maxSpares); conns.taken.Load() != 0 {
		t.Error("spares were opened before the first request")
	}
	ask := func(n int) {
		var asking sync.WaitGroup
		for range n {
			asking.Go(func() {
				if _, err := o.client.Images(t.Context(), ""); err != nil {
					t.Error(err)
				}
			})
		}
		asking.Wait()
	}
	spares := func() []*spare {
		d.mu.Lock()
		defer d.mu.Unlock()
		return slices.Clone(d.spares)
	}
	ask(1)
	d.connectIfWanted(2 * maxSpares)
	await(t, "the spares are not open", func() bool {
		return len(spares()) == maxSpares && conns.taken.Load() == 1+maxSpares
	})
	first := spares()[0]
	d.expire(first)
	d.connectIfWanted(maxSpares)
	if got := spares(); len(got) != maxSpares-1 || slices.Contains(got, first) {
		t.Errorf("%d spares after one has expired without a request, want %d", len(got), maxSpares-1)
	}
	ask(maxSpares / 2)
	if taken := conns.taken.Load(); taken != 1+maxSpares {
		t.Errorf("%d connections although there were spares, want %d", taken, 1+maxSpares)
	}
	for _, s := range spares() {
		d.expire(s)
	}
	await(t, "an expired spare is open", func() bool {
		return len(spares()) == 0 && conns.open.Load() <= 1+maxSpares/2
	})
	ask(1)
}

// A lookup that has to connect opens a second connection for the requests that follow it. Other
// requests do not.
func TestLookupsConnectTwice(t *testing.T) {
	var conns counted
	f := over(t, conns.server(t).URL)
	o := f.all[0]
	o.dialer.spareTime = time.Hour
	ask := func(lookup bool, want int32) {
		t.Helper()
		if lookup {
			_, _ = f.Chain(t.Context(), "chain") // the server's answer is no chain
		} else if _, err := f.Images(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		await(t, fmt.Sprintf("%d connections, want %d", conns.taken.Load(), want), func() bool {
			o.dialer.mu.Lock()
			defer o.dialer.mu.Unlock()
			return o.dialer.opening == 0 && conns.taken.Load() == want
		})
	}
	ask(false, 1)
	o.client.CloseIdleConnections()
	ask(true, 3)
	o.client.CloseIdleConnections()
	ask(false, 3) // uses the second one
	o.client.CloseIdleConnections()
	ask(false, 4)
}

// A spare that the hub has closed is not used.
func TestClosedSpares(t *testing.T) {
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
	d := testDialer()
	dial := func() net.Conn {
		conn, err := d.dial(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	defer dial().Close()
	d.connectIfWanted(maxSpares)
	closed := map[string]bool{}
	for range maxSpares + 1 {
		conn := <-taken
		closed[conn.RemoteAddr().String()] = true
		conn.Close()
	}
	await(t, "the spares are not open", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.opening == 0
	})
	conn := dial()
	defer conn.Close()
	if closed[conn.LocalAddr().String()] {
		t.Error("a connection that the hub had closed was used")
	}
}

// Where no hub listens, opening spares fails, and is not tried again at once.
func TestSparesWithoutAHub(t *testing.T) {
	d := testDialer()
	if conn, err := d.dial(t.Context(), "tcp", "127.0.0.1:1"); err == nil {
		conn.Close()
		t.Error("a hub listens on port 1")
	}
	d.connectIfWanted(maxSpares)
	await(t, "spares are still being opened", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.opening == 0 && len(d.spares) == 0
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.openLocked(maxSpares); d.opening > 0 {
		t.Error("spares are opened again at once")
	}
}
