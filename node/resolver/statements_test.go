package resolver

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// While a statement is written to a disk that does not answer, nobody waits who needs another
// chain; who needs this one does.
func TestSlowDiskDelaysNoOtherChain(t *testing.T) {
	r, _ := newResolver(t, &fakeHub{})
	slow := statement(0)
	// Nobody reads what is written there, so writing waits.
	disk := r.path(slow.Chain) + ".new"
	if err := unix.Mkfifo(disk, 0o600); err != nil {
		t.Fatal(err)
	}
	r.Hold(slow.Chain)
	kept := make(chan error, 2)
	for range cap(kept) {
		go func() { kept <- r.keep(slow) }()
	}
	answer := func() {
		reader, err := os.OpenFile(disk, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		for range cap(kept) {
			select {
			case err := <-kept:
				if err == nil {
					t.Error("a statement is kept that was not written")
				}
			case <-time.After(30 * time.Second):
				t.Fatal("a statement is still being written")
			}
		}
	}
	defer answer()
	for !r.isWriting(slow.Chain) {
		time.Sleep(time.Millisecond)
	}
	others := make(chan error, 1)
	go func() {
		r.Hold(chainID(1))
		others <- r.keep(statement(1))
		r.Drop(chainID(1))
	}()
	select {
	case err := <-others:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("another chain waits for the disk")
	}
}

func (r *Resolver) isWriting(chain string) bool {
	r.held.Lock()
	defer r.held.Unlock()
	return r.writing[chain]
}
