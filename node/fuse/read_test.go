package fuse

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"lighter/test/testkit/eventually"
)

// A read returns the bytes up to the end of the device. A malformed read fails with EIO, and a read
// of an unknown device with ESTALE.
func TestRead(t *testing.T) {
	s, k, _ := connect(t, resending)
	id := k.add(s, "a", ready{})
	for _, test := range []struct {
		name   string
		offset int64
		size   uint32
		want   []byte
		errno  unix.Errno
	}{
		{"a page", 4096, 4096, patterned(4096, 4096), 0},
		{"odd", 4097, 4095, patterned(4097, 4095), 0},
		{"many pages", 0, 128 << 10, patterned(0, 128<<10), 0},
		{"up to the end", testSize - 4096, 4096, patterned(testSize-4096, 4096), 0},
		{"across the end", testSize - 4096, 8192, patterned(testSize-4096, 4096), 0},
		{"beyond the end", testSize, 4096, nil, 0},
		{"far beyond the end", 1 << 62, 4096, nil, 0},
		{"nothing", 0, 0, nil, 0},
		{"a negative offset", -1, 4096, nil, unix.EIO},
		{"more than the negotiated size", 0, maxRead + 1, nil, unix.EIO},
	} {
		a := k.ask(opRead, nodeID(id), bodyOf(gofuse.ReadIn{Offset: uint64(test.offset), Size: test.size}))
		if a.errno != test.errno || !bytes.Equal(a.data, test.want) {
			t.Errorf("%s: got %d bytes and errno %d, want %d of the device and errno %d", test.name, len(a.data),
				int(a.errno), len(test.want), int(test.errno))
		}
	}
	if a := k.ask(opRead, nodeID(testID("unknown")), bodyOf(gofuse.ReadIn{Size: 4096})); a.errno != unix.ESTALE {
		t.Errorf("read of an unknown device: got %v, want ESTALE", a.errno)
	}
	if a := k.ask(opRead, nodeID(id), nil); a.errno != unix.EIO {
		t.Errorf("read without a body: got %v, want EIO", a.errno)
	}
}

func TestFailedReadIsEIO(t *testing.T) {
	s, k, _ := connect(t, resending)
	r := newStuck()
	id := k.add(s, "a", r)
	k.read(1, id, 0, 4096)
	r.release <- errors.New("the hub is on fire")
	if a := k.next(); a.errno != unix.EIO || a.unique != 1 || len(a.data) != 0 {
		t.Errorf("got answer %+v, want EIO for read 1", a)
	}
}

// small is the size, in bytes, of reads in tests with many reads at a time: all answers have to fit
// into a socket's buffer.
const small = 64

// A device is served although all reads of all other devices are stuck.
func TestStuckDevicesDelayNoOther(t *testing.T) {
	s, k, _ := connect(t, resending)
	unique := uint64(0)
	r := newStuck()
	for d := range 6 { // more than the limits on all devices together allow
		id := k.add(s, string(rune('a'+d)), r)
		for range 3 * maxPerDevice {
			unique++
			k.read(unique, id, 0, testSize)
		}
	}
	other := k.add(s, "other", ready{})
	for range 100 {
		a := k.ask(opRead, nodeID(other), bodyOf(gofuse.ReadIn{Offset: 4096, Size: 4096}))
		if a.errno != 0 || !bytes.Equal(a.data, patterned(4096, 4096)) {
			t.Fatalf("read of the other device: got %d bytes and errno %d, want 4096 of the device and 0", len(a.data),
				int(a.errno))
		}
	}
	if a := k.ask(opStatfs, gofuse.FUSE_ROOT_ID, nil); a.errno != 0 { // the node's health check
		t.Fatalf("statfs: got %v, want no error", a.errno)
	}
	eventually.Holds(t, "arrival of all reads", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.limits.active)+s.limits.queued == int(unique)
	})
	s.mu.Lock()
	active := len(s.limits.active)
	s.mu.Unlock()
	if limit := maxBytes/testSize + 6*alwaysPerDevice; active > limit {
		t.Errorf("%d reads are active, want at most %d", active, limit)
	}
	// One by one, because the test's socket has no room for so many unread answers.
	for ; unique > 0; unique-- {
		k.send(opInterrupt, 0, 0, bodyOf(gofuse.InterruptIn{Unique: unique}))
		if a := k.next(); a.unique != unique || a.errno != unix.EINTR {
			t.Fatalf("got answer %+v, want EINTR for read %d", a, unique)
		}
	}
	eventually.Holds(t, "end of all reads", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		l := &s.limits
		return len(l.active) == 0 && l.queued == 0 && l.bytes == 0 && len(l.queues) == 0 && len(s.reads) == 0
	})
}

// Queued reads become active when others end, in the order of their arrival.
func TestQueuedReadsStart(t *testing.T) {
	s, k, _ := connect(t, resending)
	r := newStuck()
	id := k.add(s, "a", r)
	const n = maxPerDevice + 50
	for i := range uint64(n) {
		k.read(i, id, 0, small)
	}
	k.sync()
	eventually.Holds(t, "start of the first reads", func() bool { return r.reads.Load() == maxPerDevice })
	close(r.release)
	for range n {
		if a := k.next(); a.errno != 0 || !bytes.Equal(a.data, patterned(0, small)) {
			t.Fatalf("got %d bytes and errno %d, want %d of the device and 0", len(a.data), int(a.errno), small)
		}
	}
}

// A read of a killed thread fails with EINTR, whether it was queued or active, and its place
// becomes free for another read. A read whose thread only got a signal goes on. An INTERRUPT for an
// answered read is ignored.
func TestInterrupt(t *testing.T) {
	s, k, _ := connect(t, resending)
	r := newStuck()
	defer close(r.release)
	id := k.add(s, "a", r)
	const n = maxPerDevice + 4 // four reads more than can be active
	living := exec.Command("sleep", "infinity")
	if err := living.Start(); err != nil {
		t.Fatal(err)
	}
	threads := map[uint64]int{6: os.Getpid(), 8: living.Process.Pid, n - 2: os.Getpid(), n - 3: living.Process.Pid}
	for i := range uint64(n) {
		k.readAs(cmp.Or(threads[i], endedThread), i, id, 0, small)
	}
	eventually.Holds(t, "start of the first reads", func() bool { return r.reads.Load() == maxPerDevice })
	for _, unique := range []uint64{6, 8, n - 2, n - 3} {
		k.send(opInterrupt, 0, 0, bodyOf(gofuse.InterruptIn{Unique: unique}))
	}
	for _, unique := range []uint64{n - 1, 7} {
		k.send(opInterrupt, 0, 0, bodyOf(gofuse.InterruptIn{Unique: unique}))
		if a := k.next(); a.unique != unique || a.errno != unix.EINTR {
			t.Errorf("got answer %+v, want EINTR for read %d", a, unique)
		}
	}
	eventually.Holds(t, "end of the read", func() bool { return r.stopped.Load() == 1 })
	eventually.Holds(t, "start of a queued read", func() bool { return r.reads.Load() == maxPerDevice+1 })
	k.send(opInterrupt, 0, 0, bodyOf(gofuse.InterruptIn{Unique: 7})) // this read is answered already
	k.send(opInterrupt, 0, 0, nil)                                   // malformed
	k.sync()
	if err := living.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = living.Wait() // it was killed
	for range 2 {
		if a := k.next(); threads[a.unique] != living.Process.Pid || a.errno != unix.EINTR {
			t.Errorf("got answer %+v, want EINTR for a read of the thread that was killed later", a)
		}
	}
}

// A queued read fails at its deadline. An active read fails readGrace later if its Reader has not
// returned. Each read is answered once.
func TestDeadline(t *testing.T) {
	s, k, _ := connect(t, resending)
	r := newStuck()
	r.deaf = true
	id := k.add(s, "a", r)
	const n = maxPerDevice + 3
	for i := range uint64(n) {
		k.read(i, id, 0, small)
	}
	k.sync()
	now := time.Now()
	s.expire(now.Add(readDeadline - time.Minute))
	k.wantNoAnswer()
	s.expire(now.Add(readDeadline)) // the deadline of the queued reads
	for range 3 {
		if a := k.next(); a.unique < maxPerDevice || a.errno != unix.EIO {
			t.Errorf("got answer %+v, want EIO for a queued read", a)
		}
	}
	k.sync()
	k.wantNoAnswer()
	s.expire(now.Add(readDeadline + readGrace)) // the active reads, whose Readers ignore the deadline, fail now
	for range maxPerDevice {
		if a := k.next(); a.unique >= maxPerDevice || a.errno != unix.EIO {
			t.Errorf("got answer %+v, want EIO for an active read", a)
		}
	}
	close(r.release) // the Readers return too late
	eventually.Holds(t, "end of all reads", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.limits.active) == 0
	})
	k.sync()
	k.wantNoAnswer()
}

// timed is a Reader that sends the deadline of its context, and reads nothing.
type timed chan time.Time

func (deadlines timed) ReadAt(ctx context.Context, _ []byte, _ int64) (missed int64, err error) {
	deadline, _ := ctx.Deadline()
	deadlines <- deadline
	return 0, nil
}

// A Reader gets a context that ends readDeadline after the request arrived.
func TestReadHasADeadline(t *testing.T) {
	s, k, _ := connect(t, resending)
	deadlines := make(timed, 1)
	id := k.add(s, "a", deadlines)
	before := time.Now()
	k.read(1, id, 0, 4096)
	k.next()
	if d := <-deadlines; d.Before(before.Add(readDeadline)) || d.After(time.Now().Add(readDeadline)) {
		t.Errorf("the deadline is %v after the request, want %v", d.Sub(before), readDeadline)
	}
	if readDeadline+readGrace+watchInterval >= 120*time.Second {
		t.Error("a read may take so long that the kernel reports a hung task")
	}
}

// Remove fails the device's reads with ESTALE, and returns when no Reader runs. The device can be
// added again.
func TestRemove(t *testing.T) {
	s, k, _ := connect(t, resending)
	r := newStuck()
	id := k.add(s, "a", r)
	const n = maxPerDevice + 5
	for i := range uint64(n) {
		k.read(i, id, 0, small)
	}
	k.sync()
	if err := s.Remove(id); err != nil {
		t.Fatal(err)
	}
	if r.stopped.Load() != r.reads.Load() {
		t.Errorf("after Remove, %d of %d calls of ReadAt have returned, want all", r.stopped.Load(), r.reads.Load())
	}
	stale := 0
	for range n + 1 {
		// An answer with unique 0 is the kernel notification that the name is gone.
		switch a := k.next(); {
		case a.errno == unix.ESTALE:
			stale++
		case a.unique != 0:
			t.Errorf("got answer %+v, want ESTALE", a)
		}
	}
	if stale != n {
		t.Errorf("%d reads failed with ESTALE, want %d", stale, n)
	}
	if err := s.Remove(id); err != nil {
		t.Errorf("the second Remove: got %v, want no error", err)
	}
	k.add(s, "a", ready{})
	if a := k.ask(opRead, nodeID(id), bodyOf(gofuse.ReadIn{Size: 4096})); a.errno != 0 {
		t.Errorf("read after the device was added again: got %v, want no error", a.errno)
	}
}

// After the context of Serve is done, the server still answers reads whose Readers answer soon.
func TestStopFinishesReads(t *testing.T) {
	s, k, stop := connect(t, resending)
	r := newStuck()
	id := k.add(s, "a", r)
	k.read(1, id, 0, 4096)
	eventually.Holds(t, "start of the read", func() bool { return r.reads.Load() == 1 })
	go func() {
		eventually.Holds(t, "stopping", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.stopping
		})
		close(r.release)
	}()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if a := k.next(); a.unique != 1 || a.errno != 0 || !bytes.Equal(a.data, patterned(0, 4096)) {
		t.Errorf("answer to %d: got %d bytes, errno %d; want the bytes of read 1", a.unique, len(a.data), a.errno)
	}
}

// If a request is resent while its read is active, the device is read only once.
func TestResentRequestIsReadOnce(t *testing.T) {
	s, k, _ := connect(t, resending)
	r := newStuck()
	id := k.add(s, "a", r)
	for range 3 {
		k.read(resent|2, id, 0, 4096)
	}
	k.sync()
	close(r.release)
	if a := k.next(); a.unique != resent|2 || a.errno != 0 {
		t.Errorf("got an answer to %d with errno %d, want one to %d without an error", a.unique, a.errno,
			uint64(resent|2))
	}
	k.sync()
	k.wantNoAnswer()
	if n := r.reads.Load(); n != 1 {
		t.Errorf("the device was read %d times, want once", n)
	}
}

// Many queued reads expire, and each is counted once. The test does not read the answers: the
// socket has no room for all of them.
func TestManyReadsExpire(t *testing.T) {
	s, k, _ := connect(t, resending)
	r := newStuck()
	defer close(r.release)
	id := k.add(s, "a", r)
	const n = maxPerDevice + 2500
	for i := range uint64(n) {
		k.read(i, id, 0, small)
	}
	k.sync()
	s.expire(time.Now().Add(readDeadline))
	s.mu.Lock()
	unanswered := len(s.reads)
	s.mu.Unlock()
	st := s.Stats()
	if unanswered != maxPerDevice || st.Active != unanswered || st.Queued != 0 ||
		st.Failed[Reasons[reasonLate]] != n-maxPerDevice {
		t.Errorf("%d unanswered reads, %d active, %d queued, %d late; want %d, %d, 0, %d", unanswered, st.Active,
			st.Queued, st.Failed[Reasons[reasonLate]], maxPerDevice, maxPerDevice, n-maxPerDevice)
	}
}
