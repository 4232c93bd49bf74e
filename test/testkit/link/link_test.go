package link

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"
)

// proxied starts a server and a proxy in front of it, and returns the proxy's address.
func proxied(t testing.TB, rtt time.Duration, serve func(net.Conn)) (*Proxy, string) {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			work.Go(func() { defer conn.Close(); serve(conn) })
		}
	})
	p := New(rtt)
	p.Forward(front, server.Addr().String())
	t.Cleanup(func() { p.Close(); server.Close(); work.Wait() })
	return p, front.Addr().String()
}

func dial(t testing.TB, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}

func echo(conn net.Conn) { _, _ = io.Copy(conn, conn) }

func TestNothingArrivesEarly(t *testing.T) {
	const rtt = 30 * time.Millisecond
	_, address := proxied(t, rtt, echo)
	start := time.Now() // before the proxy accepts the connection
	conn := dial(t, address)
	for i := range 3 {
		if _, err := conn.Write([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		// The simulated handshake takes one round trip more before the first echo.
		if took, least := time.Since(start), time.Duration(i+2)*rtt; took < least {
			t.Errorf("%d round trips took %s, want at least %s", i+2, took, least)
		}
	}
}

func TestManyConnectionsKeepTheirBytes(t *testing.T) {
	_, address := proxied(t, 5*time.Millisecond, echo)
	var work sync.WaitGroup
	for n := range 32 {
		work.Go(func() {
			conn := dial(t, address)
			sent := make([]byte, 1+rand.IntN(2<<20))
			for i := range sent {
				sent[i] = byte(i * (n + 1) >> 3)
			}
			work.Go(func() {
				for rest := sent; len(rest) > 0; {
					n := min(len(rest), 1+rand.IntN(100_000))
					if _, err := conn.Write(rest[:n]); err != nil {
						t.Error(err)
					}
					rest = rest[n:]
				}
				if err := conn.CloseWrite(); err != nil { // the answer still arrives
					t.Error(err)
				}
			})
			got, err := io.ReadAll(conn)
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("got %d bytes with SHA-256 %x (%v), want %d bytes with SHA-256 %x",
					len(got), sha256.Sum256(got), err, len(sent), sha256.Sum256(sent))
			}
		})
	}
	work.Wait()
}

func TestBufferForSlowReaderIsBounded(t *testing.T) {
	const most = 16 * maxBuffer // more bytes than the proxy and the kernel's sockets can buffer
	taken := make(chan int, 1)
	p, address := proxied(t, time.Millisecond, func(conn net.Conn) {
		sum := 0
		for sum < most {
			if err := conn.SetWriteDeadline(time.Now().Add(3 * time.Second)); err != nil {
				t.Error(err)
			}
			n, err := conn.Write(make([]byte, 64<<10))
			if sum += n; err != nil {
				break
			}
		}
		taken <- sum
	})
	conn := dial(t, address)
	sum := <-taken
	if sum < maxBuffer || sum >= most {
		t.Errorf("the proxy accepted %d bytes for a client that reads none, want at least %d and less than %d",
			sum, maxBuffer, most)
	}
	if left := p.shared.Load(); left != sharedBuffer-maxBuffer+minBuffer {
		t.Errorf("%d bytes of the shared buffer are free, want %d", left, sharedBuffer-maxBuffer+minBuffer)
	}
	if n, err := io.Copy(io.Discard, conn); err != nil || n != int64(sum) {
		t.Errorf("received %d bytes (%v), want %d", n, err, sum)
	}
	p.Close()
	if left := p.shared.Load(); left != sharedBuffer {
		t.Errorf("after Close %d bytes of the shared buffer are free, want %d", left, sharedBuffer)
	}
}

// A ring that grows keeps its bytes in order, wherever its first byte is.
func TestRingGrowsAtAnyOffset(t *testing.T) {
	p := New(0)
	defer p.Close()
	for range 100 {
		d := newDirection(p)
		var in, out int
		for len(d.ring) < 8*minBuffer {
			space := d.space()
			space = space[:1+rand.IntN(len(space))]
			for i := range space {
				space[i], in = byte(1+in%251), in+1 // never 0, because a new ring is full of zeros
			}
			d.add(len(space), time.Time{}, nil)
			if d.received-d.sentBytes < int64(len(d.ring)) && rand.IntN(3) == 0 { // a full ring must grow
				due, _, err := d.next()
				if err != nil {
					t.Fatal(err)
				}
				for _, b := range due[:1+rand.IntN(len(due))] {
					if want := byte(1 + out%251); b != want {
						t.Fatalf("byte %d: got %d, want %d", out, b, want)
					}
					out++
				}
				d.advance(out - int(d.sentBytes))
			}
		}
		d.release()
	}
	if left := p.shared.Load(); left != sharedBuffer {
		t.Errorf("%d bytes of the shared buffer are free, want %d", left, sharedBuffer)
	}
}

func TestServerIsNotListening(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := New(time.Millisecond)
	p.Forward(front, gone.Addr().String())
	defer p.Close()
	if n, err := dial(t, front.Addr().String()).Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes without a server, want an error", n)
	}
}

func TestCloseEndsHangingConnections(t *testing.T) {
	p, address := proxied(t, time.Hour, echo)
	conn := dial(t, address)
	if _, err := conn.Write([]byte("never")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // the bytes should be in flight then
	p.Close()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("read after Close succeeded, want an error")
	}
}

// BenchmarkProxy measures the throughput of the proxy, its CPU time, and its round-trip time.
func BenchmarkProxy(b *testing.B) {
	for _, rtt := range []time.Duration{500 * time.Microsecond, 50 * time.Millisecond} {
		for _, connections := range []int{1, 16} {
			b.Run(fmt.Sprintf("bulk/%s/%d", rtt, connections), func(b *testing.B) { bulk(b, rtt, connections) })
		}
		b.Run(fmt.Sprintf("roundtrip/%s", rtt), func(b *testing.B) {
			_, address := proxied(b, rtt, echo)
			conn := dial(b, address)
			for b.Loop() {
				if _, err := conn.Write([]byte{1}); err != nil {
					b.Fatal(err)
				}
				if _, err := conn.Read(make([]byte, 1)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDirect measures the throughput and CPU time of server and client without a proxy. The
// CPU times of BenchmarkProxy include those of server and client.
func BenchmarkDirect(b *testing.B) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); send(conn) }()
		}
	}()
	receive(b, server.Addr().String(), 1)
}

func bulk(b *testing.B, rtt time.Duration, connections int) {
	_, address := proxied(b, rtt, send)
	receive(b, address, connections)
}

// size is the number of bytes sent over a connection.
const size = 64 << 20

func send(conn net.Conn) {
	buffer := make([]byte, 1<<20)
	for range size / len(buffer) {
		if _, err := conn.Write(buffer); err != nil {
			return
		}
	}
}

func receive(b *testing.B, address string, connections int) {
	b.SetBytes(size * int64(connections))
	before := processorTime(b)
	for b.Loop() {
		var work sync.WaitGroup
		for range connections {
			work.Go(func() {
				conn := dial(b, address)
				defer conn.Close()
				if n, err := io.Copy(io.Discard, conn); err != nil || n != size {
					b.Errorf("received %d bytes (%v), want %d", n, err, size)
				}
			})
		}
		work.Wait()
	}
	gigabytes := float64(b.N) * size * float64(connections) / 1e9
	b.ReportMetric((processorTime(b)-before)/gigabytes, "cpu-s/GB") // with the server and the client
}

func processorTime(b *testing.B) float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}
