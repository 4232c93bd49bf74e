package fuse

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"lighter/test/testkit/example"
)

// The server answers the requests in a journal that an earlier version has written.
func TestStoredJournal(t *testing.T) {
	id := testID("a")
	stored := example.Stored(t, "journal-1.bin", func() []byte {
		j, err := newJournal(4)
		if err != nil {
			t.Fatal(err)
		}
		j.acquire() // an empty slot, as of an answered request
		copy(j.acquire(), rawRequest(opRead, 7, nodeID(id), bodyOf(gofuse.ReadIn{Offset: 4096, Size: small})))
		copy(j.acquire(), rawRequest(opLookup, 8, gofuse.FUSE_ROOT_ID, []byte("missing\x00")))
		return bytes.Clone(j.mem)
	})
	path := filepath.Join(t.TempDir(), "journal")
	if err := os.WriteFile(path, stored, 0o600); err != nil {
		t.Fatal(err)
	}
	journal, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	s, k := newPair(t, journalled)
	kept, err := s.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Detach(), kept[1].Close()); err != nil {
		t.Fatal(err)
	}
	next, err := Adopt([]*os.File{kept[0], journal}, s.dir, s.State(), s.log)
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
	for range 2 {
		switch a := k.next(); {
		case a.unique == 7 && a.errno == 0 && bytes.Equal(a.data, patterned(4096, small)):
		case a.unique == 8 && a.errno == unix.ENOENT:
		default:
			t.Errorf("request %d: got %d bytes and errno %d; want the bytes of read 7, or ENOENT for lookup 8",
				a.unique, len(a.data), int(a.errno))
		}
	}
	cancel()
	if err := errors.Join(<-served, next.Detach()); err != nil {
		t.Error(err)
	}
}
