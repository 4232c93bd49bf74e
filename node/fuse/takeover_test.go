package fuse

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"lighter/format/chunk"
	"lighter/test/testkit/eventually"
)

// resent is resentBit, of a request that the test resends.
const resent = 1 << 63

// A successor answers the reads that its predecessor left unanswered.
func TestTakeOver(t *testing.T) {
	s, k := newPair(t, resending)
	first := newStuck()
	id := k.add(s, "a", first)
	conn, err := s.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	unanswered := serveUntilStuck(t, s, k, id, first)
	k.wantNoAnswer()
	if err := s.Detach(); err != nil {
		t.Fatal(err)
	}
	next, err := Adopt(conn, s.dir, s.State(), s.log)
	if err != nil {
		t.Fatal(err)
	}
	k.add(next, "a", ready{})
	if err := next.Resend(); err != nil {
		t.Fatal(err)
	}
	if a := k.next(); a.unique != 0 || int32(-a.errno) != -gofuse.NOTIFY_RESEND {
		t.Errorf("got %+v, want the notification NOTIFY_RESEND", a)
	}
	for unique := range uint64(unanswered) {
		k.read(resent|unique, id, 0, small)
	}
	ctx, cancel := testContext(t)
	served := make(chan error, 1)
	go func() { served <- next.Serve(ctx) }()
	for range unanswered {
		if a := k.next(); a.unique&resent == 0 || a.errno != 0 || !bytes.Equal(a.data, patterned(0, small)) {
			t.Errorf("read %d: got %d bytes and errno %d; want a resent read, %d bytes and errno 0", a.unique,
				len(a.data), int(a.errno), small)
		}
	}
	cancel()
	if err := errors.Join(<-served, next.Detach()); err != nil {
		t.Error(err)
	}
}

// serveUntilStuck makes s serve reads whose Reader does not return, stops s, and returns the number
// of these reads.
func serveUntilStuck(t *testing.T, s *Server, k *kernel, id chunk.ID, r *stuck) (reads int) {
	t.Helper()
	ctx, cancel := testContext(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	const n = maxPerDevice + 10
	for i := range uint64(n) {
		k.read(i, id, 0, small)
	}
	k.sync()
	eventually.Holds(t, "start of the reads", func() bool { return r.reads.Load() == maxPerDevice })
	cancel()
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	return n
}

// If the kernel cannot resend, a successor finds the unanswered reads in the journal.
func TestTakeOverWithAJournal(t *testing.T) {
	s, k := newPair(t, journalled)
	r := newStuck()
	id := k.add(s, "a", r)
	kept, err := s.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	unanswered := serveUntilStuck(t, s, k, id, r)
	k.wantNoAnswer()
	// The state as if the server had been killed with two more requests: one whose name does not
	// fit into a slot, and one that gets no answer.
	for _, request := range [][]byte{
		rawRequest(opLookup, 1000, gofuse.FUSE_ROOT_ID, append(bytes.Repeat([]byte("x"), 250), 0)),
		rawRequest(opInterrupt, 1001, 0, bodyOf(gofuse.InterruptIn{Unique: 5000})),
	} {
		j, err := openJournal(kept[1])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := j.busy(); err != nil {
			t.Fatal(err)
		}
		copy(j.acquire(), request)
		if err := j.unmap(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Detach(); err != nil {
		t.Fatal(err)
	}
	if _, err := Adopt(nil, s.dir, s.State(), s.log); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Adopt without descriptors: got %v, want ErrUnsupported", err)
	}
	next, err := Adopt(kept, s.dir, s.State(), s.log)
	if err != nil {
		t.Fatal(err)
	}
	k.add(next, "a", ready{})
	if err := next.Resend(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := testContext(t)
	served := make(chan error, 1)
	go func() { served <- next.Serve(ctx) }()
	got := map[uint64]int{}
	for range unanswered + 1 {
		a := k.next()
		got[a.unique]++
		if want := a.unique == 1000; want != (a.errno == unix.ENOENT) ||
			!want && !bytes.Equal(a.data, patterned(0, small)) {
			t.Errorf("request %d: got %d bytes and errno %d; want ENOENT for the lookup, and the bytes of each read",
				a.unique, len(a.data), int(a.errno))
		}
	}
	if len(got) != unanswered+1 {
		t.Errorf("%d requests were answered, want %d", len(got), unanswered+1)
	}
	// All slots are free again, and few were ever used.
	eventually.Holds(t, "free slots", func() bool {
		next.journal.mu.Lock()
		defer next.journal.mu.Unlock()
		return len(next.journal.free)+1 == int(next.journal.next) && next.journal.next < 300
	})
	cancel()
	if err := errors.Join(<-served, next.Detach()); err != nil {
		t.Error(err)
	}
}

// A journal of another version of Lighter has another number of slots. The server answers the
// request in this journal, and then goes on using the journal.
func TestJournalOfAnotherSize(t *testing.T) {
	for _, slots := range []int64{4, 2 * journalSlots} {
		s, k := newPair(t, journalled)
		kept, err := s.Descriptors()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { kept[0].Close() }) // if the test fails: k.receive ends only when all copies are closed
		if err := errors.Join(s.Detach(), kept[1].Close()); err != nil {
			t.Fatal(err)
		}
		j, err := newJournal(slots)
		if err != nil {
			t.Fatal(err)
		}
		id := testID("a")
		copy(j.acquire(), rawRequest(opRead, 1, nodeID(id), bodyOf(gofuse.ReadIn{Size: small})))
		if err := j.unmap(); err != nil {
			t.Fatal(err)
		}
		next, err := Adopt([]*os.File{kept[0], j.file}, s.dir, s.State(), s.log)
		if err != nil {
			t.Fatalf("adopt with a journal of %d slots: got %v, want no error", slots, err)
		}
		r := newStuck()
		k.add(next, "a", r)
		if err := next.Resend(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := testContext(t)
		served := make(chan error, 1)
		go func() { served <- next.Serve(ctx) }()
		const reads = 8 // more than the small journal has slots for
		for unique := range uint64(reads - 1) {
			k.read(2+unique, id, 0, small)
		}
		eventually.Holds(t, "start of all reads", func() bool { return r.reads.Load() == reads })
		close(r.release)
		for range reads {
			if a := k.next(); a.errno != 0 || !bytes.Equal(a.data, patterned(0, small)) {
				t.Errorf("%d slots, read %d: got %d bytes and errno %d, want %d of the device and 0", slots,
					a.unique, len(a.data), int(a.errno), small)
			}
		}
		cancel()
		if err := errors.Join(<-served, next.Detach()); err != nil {
			t.Error(err)
		}
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Truncate(slotSize + 1); err != nil {
		t.Fatal(err)
	}
	if _, err := openJournal(file); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("openJournal of a file that is no journal: got %v, want ErrUnsupported", err)
	}
}
