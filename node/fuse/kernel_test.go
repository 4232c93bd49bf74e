package fuse

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

// kernel is the other end of a server's connection. Like the kernel, it sends requests and receives
// answers.
type kernel struct {
	t       testing.TB
	conn    *os.File
	answers chan answer
}

type answer struct {
	unique uint64 // of the request
	errno  unix.Errno
	data   []byte
}

// resending is the state of a connection to a kernel that can resend.
var resending = State{Minor: 45, Flags: gofuse.CAP_HAS_RESEND, MaxPages: maxRead / pageSize}

// journalled is the state of a connection to a kernel that cannot resend: the server keeps a
// journal.
var journalled = State{Minor: 36, MaxPages: maxRead / pageSize}

// connect returns a server and its kernel. The server serves until stop is called or the test ends.
// stop returns the result of Serve. The server keeps the connection until the test ends.
func connect(t testing.TB, state State) (s *Server, k *kernel, stop func() error) {
	t.Helper()
	s, k = newPair(t, state)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	stop = func() error {
		cancel()
		err := <-served
		served <- err
		return err
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return s, k, stop
}

// newPair returns a server that does not serve yet, and its kernel.
func newPair(t testing.TB, state State) (*Server, *kernel) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	kept := []*os.File{os.NewFile(uintptr(fds[0]), "server")}
	if !state.Resends() {
		j, err := newJournal(journalSlots)
		if err != nil {
			t.Fatal(err)
		}
		if err := j.unmap(); err != nil {
			t.Fatal(err)
		}
		kept = append(kept, j.file)
	}
	s, err := Adopt(kept, t.TempDir(), state, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	k := &kernel{t: t, conn: os.NewFile(uintptr(fds[1]), "kernel"), answers: make(chan answer, 4096)}
	received := make(chan struct{})
	go func() {
		defer close(received)
		k.receive()
	}()
	t.Cleanup(func() {
		if err := s.Detach(); err != nil {
			t.Error(err)
		}
		<-received
		k.conn.Close()
	})
	return s, k
}

func (k *kernel) receive() {
	b := make([]byte, outHeaderSize+maxRead)
	for {
		n, err := k.conn.Read(b)
		if err != nil {
			return // the server has closed its end
		}
		h, err := decode[gofuse.OutHeader](b[:n])
		if err != nil || int(h.Length) != n {
			k.t.Errorf("got an answer of %d bytes with header %+v, error %v; want its length in the header", n, h, err)
			continue
		}
		k.answers <- answer{h.Unique, unix.Errno(-h.Status), bytes.Clone(b[outHeaderSize:n])}
	}
}

// bodyOf returns the bytes of in without the request header, with which T begins.
func bodyOf[T any](in T) []byte {
	return bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&in)), unsafe.Sizeof(in))[inHeaderSize:])
}

// endedThread is a number that no thread has.
const endedThread = 1 << 31

// rawRequest returns a request of a thread that has ended.
func rawRequest(opcode uint32, unique, node uint64, body []byte) []byte {
	return rawRequestOf(endedThread, opcode, unique, node, body)
}

func rawRequestOf(thread int, opcode uint32, unique, node uint64, body []byte) []byte {
	h := gofuse.InHeader{Length: uint32(inHeaderSize + len(body)), Opcode: opcode, Unique: unique, NodeId: node}
	h.Pid = uint32(thread)
	return append(bytes.Clone(wire(&h)), body...)
}

func (k *kernel) send(opcode uint32, unique, node uint64, body []byte) {
	k.t.Helper()
	k.sendRaw(rawRequest(opcode, unique, node, body))
}

func (k *kernel) sendRaw(request []byte) {
	k.t.Helper()
	raw, err := k.conn.SyscallConn()
	var failed error
	if err == nil {
		// unix.Write, because the server reads with unix.Readv. The race detector knows that a
		// unix.Write happens before the unix.Readv, but does not know it of os.File.Write.
		err = raw.Write(func(fd uintptr) bool {
			_, failed = unix.Write(int(fd), request)
			return failed != unix.EAGAIN
		})
	}
	if err := errors.Join(err, failed); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kernel) read(unique uint64, id chunk.ID, offset int64, size uint32) {
	k.t.Helper()
	k.readAs(endedThread, unique, id, offset, size)
}

// readAs is read for a thread.
func (k *kernel) readAs(thread int, unique uint64, id chunk.ID, offset int64, size uint32) {
	k.t.Helper()
	in := gofuse.ReadIn{Offset: uint64(offset), Size: size}
	k.sendRaw(rawRequestOf(thread, opRead, unique, nodeID(id), bodyOf(in)))
}

// next returns the next answer.
func (k *kernel) next() answer {
	k.t.Helper()
	select {
	case a := <-k.answers:
		return a
	case <-time.After(20 * time.Second):
		k.t.Fatal("got no answer within 20 s")
		return answer{}
	}
}

// ask sends a request and returns its answer, which must be the next one.
func (k *kernel) ask(opcode uint32, node uint64, body []byte) answer {
	k.t.Helper()
	const unique = 1 << 40
	k.send(opcode, unique, node, body)
	a := k.next()
	if a.unique != unique {
		k.t.Fatalf("got an answer to request %d, want one to %d", a.unique, uint64(unique))
	}
	return a
}

// sync returns when the server has received all previous requests. The test fails if an answer to
// one of them arrives first.
func (k *kernel) sync() {
	k.t.Helper()
	if a := k.ask(opStatfs, gofuse.FUSE_ROOT_ID, nil); a.errno != 0 {
		k.t.Fatalf("statfs: got %v, want no error", a.errno)
	}
}

func (k *kernel) wantNoAnswer() {
	k.t.Helper()
	select {
	case a := <-k.answers:
		k.t.Fatalf("got answer %+v, want none", a)
	default:
	}
}

// pattern returns the byte at an offset of every test device.
func pattern(offset int64) byte { return byte(offset>>12) ^ byte(offset*7) }

// patterned returns size bytes of a test device, from offset on.
func patterned(offset int64, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = pattern(offset + int64(i))
	}
	return b
}

// ready is a Reader that answers at once.
type ready struct{}

func (ready) ReadAt(_ context.Context, dst []byte, off int64) (missed int64, err error) {
	copy(dst, patterned(off, len(dst)))
	return 0, nil
}

// stuck is a Reader whose reads wait until they are released or cancelled.
type stuck struct {
	reads   atomic.Int32
	stopped atomic.Int32
	release chan error // closed: all reads succeed
	deaf    bool       // ignores its context
}

func newStuck() *stuck { return &stuck{release: make(chan error)} }

func (s *stuck) ReadAt(ctx context.Context, dst []byte, off int64) (missed int64, err error) {
	s.reads.Add(1)
	done := ctx.Done()
	if s.deaf {
		done = nil
	}
	select {
	case err := <-s.release:
		if err != nil {
			return 0, err
		}
		return ready{}.ReadAt(ctx, dst, off)
	case <-done:
		s.stopped.Add(1)
		return 0, errors.Join(errors.New("cancelled"), ctx.Err())
	}
}

func testID(name string) chunk.ID { return chunk.Sum([]byte(name)) }

const testSize = 1 << 20

func (k *kernel) add(s *Server, name string, r Reader) chunk.ID {
	k.t.Helper()
	id := testID(name)
	if _, err := s.Add(id, testSize, r); err != nil {
		k.t.Fatal(err)
	}
	return id
}
