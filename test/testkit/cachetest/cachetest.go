// Package cachetest is the conformance suite for store.Cache. Every cache of chunks must pass it.
package cachetest

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"

	"lighter/format/chunk"
	"lighter/store"
)

// lengths has the lengths of the tests' chunks, in bytes: the shortest and the longest, lengths
// around a disk's block of 4 KiB, and one in between.
var lengths = []int{1, 4095, 4096, 4097, 100_000, chunk.MaxLength}

// Run runs the suite. open returns an empty cache with room for 8 MiB of chunks.
func Run(t *testing.T, open func(t *testing.T) store.Cache) {
	for name, test := range map[string]func(*testing.T, store.Cache){
		"Empty": empty, "PutAndRead": putAndRead, "PutCopies": putCopies,
		"PutTwice": putTwice, "Load": load, "Concurrent": concurrent,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// random returns a chunk of n random bytes. Equal arguments give equal chunks.
func random(n int, seed uint64) (chunk.Ref, []byte) {
	r := rand.New(rand.NewPCG(seed, uint64(n)))
	plain := make([]byte, n)
	for i := range plain {
		plain[i] = byte(r.Uint32())
	}
	return chunk.Ref{ID: chunk.Sum(plain), Length: uint32(n)}, plain
}

// check fails the test unless the cache has the chunk, whole and in parts.
func check(t *testing.T, c store.Cache, ref chunk.Ref, plain []byte) {
	t.Helper()
	if !c.Has(ref.ID) {
		t.Errorf("Has of a chunk of %d bytes that was put: got false, want true", ref.Length)
	}
	n := len(plain)
	for _, part := range [][2]int{{0, n}, {0, 1}, {n - 1, n}, {n / 3, n/2 + 1}, {n / 2, n}} {
		got := make([]byte, part[1]-part[0])
		if !c.Read(ref, part[0], got) {
			t.Errorf("Read of bytes %d to %d of %d: got false, want true", part[0], part[1], n)
		} else if !bytes.Equal(got, plain[part[0]:part[1]]) {
			t.Errorf("Read of bytes %d to %d of %d: got other bytes than were put", part[0], part[1], n)
		}
	}
}

func empty(t *testing.T, c store.Cache) {
	ref, _ := random(100, 1)
	if c.Has(ref.ID) {
		t.Error("Has of an empty cache: got true, want false")
	}
	if c.Read(ref, 0, make([]byte, 100)) {
		t.Error("Read of an empty cache: got true, want false")
	}
}

func putAndRead(t *testing.T, c store.Cache) {
	for i, n := range lengths {
		ref, plain := random(n, uint64(i))
		c.Put(ref, plain)
	}
	for i, n := range lengths {
		ref, plain := random(n, uint64(i))
		check(t, c, ref, plain)
	}
	missing, _ := random(100, 99)
	if c.Has(missing.ID) || c.Read(missing, 0, make([]byte, 100)) {
		t.Error("Has or Read of a chunk that was not put: got true, want false")
	}
}

// putCopies checks that the caller of Put may change its bytes later.
func putCopies(t *testing.T, c store.Cache) {
	ref, plain := random(5000, 1)
	buffer := bytes.Clone(plain)
	c.Put(ref, buffer)
	clear(buffer)
	check(t, c, ref, plain)
}

func putTwice(t *testing.T, c store.Cache) {
	ref, plain := random(5000, 1)
	c.Put(ref, plain)
	c.Put(ref, plain)
	check(t, c, ref, plain)
}

func load(t *testing.T, c store.Cache) {
	ref, plain := random(5000, 1)
	missing, _ := random(5000, 2)
	c.Put(ref, plain)
	c.Load(nil)
	c.Load([]chunk.Ref{missing, ref})
	check(t, c, ref, plain)
	if c.Has(missing.ID) {
		t.Error("Has after Load of a missing chunk: got true, want false")
	}
}

func concurrent(t *testing.T, c store.Cache) {
	const chunks = 32
	var work sync.WaitGroup
	for i := range chunks {
		ref, plain := random(10_000, uint64(i))
		for range 2 {
			work.Go(func() { c.Put(ref, plain) })
			work.Go(func() {
				got := make([]byte, len(plain))
				if c.Read(ref, 0, got) && !bytes.Equal(got, plain) {
					t.Error("Read during Put: got other bytes than were put")
				}
			})
		}
	}
	work.Wait()
	for i := range chunks {
		ref, plain := random(10_000, uint64(i))
		check(t, c, ref, plain)
	}
}
