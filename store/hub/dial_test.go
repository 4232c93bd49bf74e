package hub

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
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
// them than maxSpares, and what nobody uses is closed.
func TestConnectionsAreReady(t *testing.T) {
	var conns counted
	c := clientOf(t, Options{URL: conns.server(t).URL})
	if c.ready(); conns.taken.Load() != 0 {
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
	ask(1)
	for range 3 {
		c.ready()
	}
	spares := func() int {
		c.dialer.mu.Lock()
		defer c.dialer.mu.Unlock()
		return len(c.dialer.spares)
	}
	await(t, "they are not made", func() bool { return spares() == maxSpares && conns.taken.Load() == 1+maxSpares })
	ask(maxSpares / 2)
	if taken := conns.taken.Load(); taken != 1+maxSpares {
		t.Errorf("%d connections: it made more although some were ready", taken)
	}
	left := spares()
	await(t, "they are kept for ever", func() bool { return spares() == 0 && int(conns.open.Load()) == 1+maxSpares-left })
	ask(1)
}

// A hub that is not there costs nothing but tries.
func TestReadyWithoutAHub(t *testing.T) {
	d := dialer{address: "127.0.0.1:1"}
	d.ready()
	await(t, "they are still being made", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.making == 0 && len(d.spares) == 0
	})
	if conn, err := d.dial(context.Background(), "tcp", "127.0.0.1:1"); err == nil {
		conn.Close()
		t.Error("somebody answers")
	}
}
