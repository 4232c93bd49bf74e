package postgres

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// Proxy is a TCP proxy between hubs and a server. It can close a connection after the server has
// committed a transaction and before the client has the answer: then the client cannot know whether
// the transaction was committed. It can also forward nothing more, like a network that loses all
// packets.
type Proxy struct {
	// Source is the database's URL through the proxy.
	Source string

	cut    func() bool
	server string
	cuts   atomic.Int64
	silent atomic.Bool
	ended  chan struct{} // closed when the test ends
}

// StartProxy starts a proxy for a database. The proxy runs until the test ends. It calls cut for
// each COMMIT. If cut returns true, the proxy closes the connection instead of forwarding the
// answer to the COMMIT.
func StartProxy(t testing.TB, source string, cut func() bool) *Proxy {
	t.Helper()
	u, err := url.Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{cut: cut, server: u.Host, ended: make(chan struct{})}
	u.Host = listener.Addr().String()
	p.Source = u.String()
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	t.Cleanup(func() { _ = listener.Close() })
	t.Cleanup(func() { close(p.ended) })
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.serve(client) })
		}
	})
	return p
}

// Cuts returns the number of COMMITs for which cut has returned true.
func (p *Proxy) Cuts() int64 { return p.cuts.Load() }

// Silence makes the proxy forward nothing more.
func (p *Proxy) Silence() { p.silent.Store(true) }

// serve copies both directions of a connection until one of them ends.
func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	var cutting atomic.Bool // whether to close the connection when the server answers
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer client.Close()
		buffer := make([]byte, 64<<10)
		for {
			n, err := server.Read(buffer)
			if err != nil || cutting.Load() || p.isSilent() {
				return
			}
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	}()
	_ = p.forward(client, server, &cutting) // the connection has ended
	_ = server.Close()
	<-done
}

const (
	sslRequest  = 80877103 // the code in the message SSLRequest, which has no type
	maxMessage  = 64 << 20 // longest message of a client, in bytes
	queryType   = 'Q'      // the type of a message with SQL
	headerBytes = 5        // length of a message's header: one byte for the type, four for the length
)

// forward copies the client's messages to the server.
func (p *Proxy) forward(client io.Reader, server io.Writer, cutting *atomic.Bool) error {
	for started := false; ; {
		header := make([]byte, headerBytes)
		if !started {
			header = header[1:] // the first messages have no type
		}
		if _, err := io.ReadFull(client, header); err != nil {
			return err
		}
		length := binary.BigEndian.Uint32(header[len(header)-4:])
		if length < 4 || length > maxMessage {
			return fmt.Errorf("read a client's message: its length is %d bytes, want 4 to %d", length, maxMessage)
		}
		body := make([]byte, length-4)
		if _, err := io.ReadFull(client, body); err != nil {
			return err
		}
		switch {
		case !started:
			started = len(body) < 4 || binary.BigEndian.Uint32(body) != sslRequest
		case header[0] == queryType && bytes.EqualFold(body, []byte("commit\x00")) && p.cut():
			p.cuts.Add(1)
			cutting.Store(true)
		}
		if p.isSilent() {
			return nil
		}
		if _, err := server.Write(append(header, body...)); err != nil {
			return err
		}
	}
}

// isSilent reports whether Silence was called. If so, it returns only when the test has ended.
func (p *Proxy) isSilent() bool {
	if p.silent.Load() {
		<-p.ended
		return true
	}
	return false
}
