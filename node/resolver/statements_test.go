package resolver

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// While the write of one chain's statement hangs, other chains are not delayed.
func TestSlowDiskDelaysNoOtherChain(t *testing.T) {
	r, _ := newResolver(t, &fakeHub{})
	slow := statement(0)
	// A write to a FIFO without a reader blocks.
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
					t.Error("keep succeeded although the statement was not written")
				}
			case <-time.After(30 * time.Second):
				t.Fatal("the statement is still being written after 30 s")
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
		t.Fatal("another chain waits for the write")
	}
}

func (r *Resolver) isWriting(chain string) bool {
	r.Chains.mu.Lock()
	defer r.Chains.mu.Unlock()
	return r.writing[chain]
}
