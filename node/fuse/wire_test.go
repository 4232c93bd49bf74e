package fuse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"lighter/test/testkit/golden"
)

func testContext(t *testing.T) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx, cancel
}

// The golden file has the bytes of each answer, to be compared with include/uapi/linux/fuse.h.
func TestAnswersAreGolden(t *testing.T) {
	s, k, _ := connect(t, resending)
	id := k.add(s, "a", ready{})
	k.add(s, "b", ready{})
	var out strings.Builder
	record := func(name string, a answer) { fmt.Fprintf(&out, "%s: errno %d\n%x\n", name, int32(a.errno), a.data) }
	root, node := uint64(gofuse.FUSE_ROOT_ID), nodeID(id)
	record("LOOKUP", k.ask(opLookup, root, []byte(id.String()+"\x00")))
	record("LOOKUP unknown", k.ask(opLookup, root, []byte(testID("c").String()+"\x00")))
	record("LOOKUP not an ID", k.ask(opLookup, root, []byte("name\x00")))
	record("LOOKUP in a file", k.ask(opLookup, node, []byte(id.String()+"\x00")))
	record("GETATTR root", k.ask(opGetattr, root, bodyOf(gofuse.GetAttrIn{})))
	record("GETATTR device", k.ask(opGetattr, node, bodyOf(gofuse.GetAttrIn{})))
	record("GETATTR unknown", k.ask(opGetattr, 5, bodyOf(gofuse.GetAttrIn{})))
	record("OPEN", k.ask(opOpen, node, bodyOf(gofuse.OpenIn{Flags: unix.O_RDONLY | unix.O_NOFOLLOW})))
	record("OPEN to write", k.ask(opOpen, node, bodyOf(gofuse.OpenIn{Flags: unix.O_RDWR})))
	record("OPEN unknown", k.ask(opOpen, 5, bodyOf(gofuse.OpenIn{})))
	record("OPENDIR", k.ask(opOpendir, root, bodyOf(gofuse.OpenIn{})))
	record("READDIR", k.ask(opReaddir, root, bodyOf(gofuse.ReadIn{Size: 4096})))
	record("READDIR on", k.ask(opReaddir, root,
		bodyOf(gofuse.ReadIn{Offset: min(node, nodeID(testID("b"))), Size: 4096})))
	record("STATFS", k.ask(opStatfs, root, nil))
	record("RELEASE", k.ask(opRelease, node, bodyOf(gofuse.ReleaseIn{})))
	record("DESTROY", k.ask(opDestroy, root, nil))
	record("GETXATTR", k.ask(22, node, make([]byte, 16)))
	record("an opcode to come", k.ask(999, node, nil)) // one that no kernel sends today
	k.send(opForget, 3, node, make([]byte, 8))
	k.send(opBatchForget, 4, 0, make([]byte, 24))
	k.sync()
	k.wantNoAnswer()
	if err := s.Remove(id); err != nil {
		t.Fatal(err)
	}
	record("NOTIFY_INVAL_ENTRY", k.next())
	golden.Compare(t, "fuse.golden", out.String())
}

// negotiate accepts protocol 7.31 and newer, and those of the wanted features that the kernel
// offers.
func TestNegotiate(t *testing.T) {
	init := func(in gofuse.InitIn) request {
		req, err := parseRequest(rawRequest(opInit, 2, 0, bodyOf(in)))
		if err != nil {
			t.Fatal(err)
		}
		return req
	}
	all := gofuse.InitIn{Major: 7, Minor: 45, Flags: 1<<32 - 1, Flags2: 1<<32 - 1}
	out, state, err := negotiate(init(all), pageSize)
	if err != nil || state != (State{Minor: 45, Flags: wanted, MaxPages: 256}) {
		t.Errorf("state %+v, %v; want minor version 45, all wanted features and 256 pages", state, err)
	}
	if out.Flags64() != wanted || out.MaxBackground != maxBackground || out.MaxPages != 256 || out.Minor != 45 {
		t.Errorf("answer %+v; want minor version 45, all wanted features, 256 pages, background %d", out, maxBackground)
	}
	const large = 64 << 10 // the page size of some arm64 kernels
	if _, state, err := negotiate(init(all), large); err != nil || int(state.MaxPages)*large != maxRead {
		t.Errorf("with pages of 64 KiB: got %+v, %v; want reads of up to %d bytes", state, err, maxRead)
	}
	old := gofuse.InitIn{Major: 7, Minor: 31, Flags: gofuse.CAP_ASYNC_READ}
	_, state, err = negotiate(init(old), pageSize)
	if want := (State{Minor: 31, Flags: gofuse.CAP_ASYNC_READ, MaxPages: 32}); err != nil || state != want {
		t.Errorf("an old kernel: %+v, %v; want %+v", state, err, want)
	}
	for _, bad := range []gofuse.InitIn{{Major: 7, Minor: 30}, {Major: 8}, {Major: 6, Minor: 99}} {
		if _, _, err := negotiate(init(bad), pageSize); err == nil {
			t.Errorf("protocol %d.%d was accepted, want an error", bad.Major, bad.Minor)
		}
	}
	req, _ := parseRequest(rawRequest(opLookup, 2, 0, bodyOf(all)))
	if _, _, err := negotiate(req, pageSize); !errors.Is(err, errMalformed) {
		t.Errorf("negotiate with a LOOKUP instead of INIT: %v, want errMalformed", err)
	}
}

// A directory of many devices is read in several pieces. Each device is listed once.
func TestReaddirInPieces(t *testing.T) {
	s, k, _ := connect(t, resending)
	want := map[string]bool{".": true, "..": true}
	for i := range 50 {
		want[k.add(s, fmt.Sprint(i), ready{}).String()] = true
	}
	offset := uint64(0)
	for {
		a := k.ask(opReaddir, gofuse.FUSE_ROOT_ID, bodyOf(gofuse.ReadIn{Offset: offset, Size: 200}))
		if a.errno != 0 {
			t.Fatalf("READDIR at offset %d: got %v, want no error", offset, a.errno)
		}
		if len(a.data) == 0 {
			break
		}
		for b := a.data; len(b) > 0; {
			entry, err := decode[struct {
				Ino, Off      uint64
				Length, Flags uint32
			}](b)
			if err != nil {
				t.Fatal(err)
			}
			name := string(b[24 : 24+entry.Length])
			if !want[name] {
				t.Fatalf("%q was listed twice, or does not exist", name)
			}
			delete(want, name)
			offset = entry.Off
			b = b[(24+entry.Length+7)/8*8:]
		}
	}
	if len(want) > 0 {
		t.Errorf("not listed: %v", want)
	}
}

// Add refuses a device twice, a second device with the same node ID, and sizes that are not
// multiples of a page.
func TestAddRefuses(t *testing.T) {
	s, k := newPair(t, resending)
	id := k.add(s, "a", ready{})
	if _, err := s.Add(id, testSize, ready{}); err == nil {
		t.Error("a device was added twice, want an error")
	}
	twin := id
	twin[31]++ // the node ID depends only on the first eight bytes
	if _, err := s.Add(twin, testSize, ready{}); err == nil {
		t.Error("two devices with the same node ID were added, want an error")
	}
	if err := s.Remove(twin); err != nil || s.file(nodeID(id)) == nil {
		t.Errorf("Remove of an unknown device: error %v, or it has removed the device with the same node ID", err)
	}
	for _, size := range []int64{-4096, 1, 4095} {
		if _, err := s.Add(testID("b"), size, ready{}); err == nil {
			t.Errorf("a device of %d bytes was added, want an error", size)
		}
	}
}

func TestErrno(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("wrapped: %w", err) }
	for _, test := range []struct {
		err  error
		want unix.Errno
	}{
		{nil, 0}, {errKilled, unix.EINTR}, {errNoDevice, unix.ENOENT}, {errRemoved, unix.ESTALE},
		{errReadOnly, unix.EROFS}, {errNotImplemented, unix.ENOSYS}, {errDetached, unix.EIO},
		{errOverloaded, unix.EIO}, {errTooLate, unix.EIO}, {errMalformed, unix.EIO},
		{context.DeadlineExceeded, unix.EIO}, {context.Canceled, unix.EIO},
		{unix.EINTR, unix.EIO}, {os.ErrNotExist, unix.EIO},
	} {
		if got := errno(test.err); got != test.want {
			t.Errorf("errno of %v: %v, want %v", test.err, got, test.want)
		}
		if test.err != nil && errno(wrap(test.err)) != test.want {
			t.Errorf("errno of %v, wrapped: got %v, want %v", test.err, errno(wrap(test.err)), test.want)
		}
	}
}

// Any request gets at most one answer, and the answer has the request's unique number.
func FuzzRequest(f *testing.F) {
	id := testID("a")
	for op := range uint32(60) {
		f.Add(rawRequest(op, 2, gofuse.FUSE_ROOT_ID, []byte(id.String()+"\x00")))
		f.Add(rawRequest(op, 2, nodeID(id), bodyOf(gofuse.ReadIn{Offset: 4096, Size: 4096})))
		f.Add(rawRequest(op, 2, nodeID(id), nil))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		req, err := parseRequest(bytes.Clone(b)) // cloned, so that it is aligned like a real one
		if err != nil {
			return
		}
		if _, _, err := negotiate(req, pageSize); err == nil && req.Opcode != opInit {
			t.Error("negotiate accepted a request that is not INIT")
		}
		s, k := newPair(t, resending)
		s.log = slog.New(slog.DiscardHandler)
		k.add(s, "a", ready{})
		ctx, _ := testContext(t)
		if err := s.handle(ctx, &req); err != nil && !errors.Is(err, errMalformed) && !errors.Is(err, unix.EMSGSIZE) {
			t.Fatal(err)
		}
		if !s.await(10*time.Second, func() bool { return len(s.reads) == 0 && len(s.limits.active) == 0 }) {
			t.Fatal("the read did not end within 10 s")
		}
		// All answers have been sent. The answer to a second request marks their end.
		if err := s.handle(ctx, &request{InHeader: gofuse.InHeader{Opcode: opStatfs,
			Unique: ^req.Unique}}); err != nil {
			t.Fatal(err)
		}
		answers := 0
		for a := k.next(); a.unique != ^req.Unique; a = k.next() {
			if answers++; a.unique != req.Unique || answers > 1 {
				t.Errorf("%d answers, the last to request %d; want one to %d", answers, a.unique, req.Unique)
			}
		}
	})
}
