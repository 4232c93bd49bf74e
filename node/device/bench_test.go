package device

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
	"lighter/node/fuse"
)

// BenchmarkReadAt measures concurrent reads whose chunks are cached.
func BenchmarkReadAt(b *testing.B) {
	d, m, image := newDevice(b)
	for id := range m.chunks {
		m.cached[id] = true
	}
	b.SetBytes(128 << 10)
	b.RunParallel(func(p *testing.PB) {
		r := rand.New(rand.NewPCG(1, rand.Uint64()))
		dst := make([]byte, 128<<10)
		for p.Next() {
			if _, err := d.ReadAt(b.Context(), dst, r.Int64N(int64(len(image)-len(dst)))); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkFault measures faults whose chunks are cached, one after the other: the time from the
// request to the answer, without the kernel.
func BenchmarkFault(b *testing.B) {
	d, m, image := newDevice(b)
	for id := range m.chunks {
		m.cached[id] = true
	}
	k := serveDevice(b, d, int64(len(image)))
	for b.Loop() {
		if status, _ := k.read(64<<10, 4096); status != 0 {
			b.Fatalf("got errno %d, want 0", -status)
		}
	}
}

// kernel is the other end of a server's connection: it sends requests as the kernel does.
type kernel struct {
	tb     testing.TB
	conn   *os.File // non-blocking: otherwise each request would switch threads
	node   uint64   // the device's node ID
	unique uint64   // unique number of the last request
	answer []byte   // the last answer
}

// serveDevice serves a device of size bytes until the test ends.
func serveDevice(tb testing.TB, d *Device, size int64) *kernel {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		tb.Fatal(err)
	}
	const canResend = 1 << 39 // FUSE_HAS_RESEND
	state := fuse.State{Minor: 45, Flags: canResend, MaxPages: 256}
	conn := []*os.File{os.NewFile(uintptr(fds[0]), "server")}
	server, err := fuse.Adopt(conn, tb.TempDir(), state, slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	id := chunk.Sum([]byte("device"))
	if _, err := server.Add(id, size, d); err != nil {
		tb.Fatal(err)
	}
	k := &kernel{tb: tb, conn: os.NewFile(uintptr(fds[1]), "kernel"), answer: make([]byte, 2<<20)}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := errors.Join(<-served, server.Detach(), k.conn.Close()); err != nil {
			tb.Error(err)
		}
	})
	const lookup, root = 1, 1
	status, data := k.ask(lookup, root, append([]byte(id.String()), 0))
	if status != 0 {
		tb.Fatalf("LOOKUP of the device: got errno %d, want 0", -status)
	}
	k.node = binary.NativeEndian.Uint64(data)
	return k
}

// ask sends a request and returns the answer's status, a negative errno or 0, and its data.
func (k *kernel) ask(opcode uint32, node uint64, body []byte) (status int32, data []byte) {
	k.unique += 2
	order := binary.NativeEndian
	b := order.AppendUint32(make([]byte, 0, 128), uint32(40+len(body)))
	b = order.AppendUint64(order.AppendUint64(order.AppendUint32(b, opcode), k.unique), node)
	b = append(b, make([]byte, 16)...) // uid, gid, pid
	_, err := k.conn.Write(append(b, body...))
	n := 0
	if err == nil {
		n, err = k.conn.Read(k.answer)
	}
	if err != nil || n < 16 || order.Uint64(k.answer[8:]) != k.unique {
		k.tb.Fatalf("got an answer of %d bytes, error %v; want an answer to request %d", n, err, k.unique)
	}
	return int32(order.Uint32(k.answer[4:])), k.answer[16:n]
}

func (k *kernel) read(offset uint64, size uint32) (status int32, data []byte) {
	order := binary.NativeEndian
	body := order.AppendUint64(make([]byte, 8, 40), offset)
	const read = 15
	return k.ask(read, k.node, append(order.AppendUint32(body, size), make([]byte, 20)...))
}
