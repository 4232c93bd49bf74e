//go:build e2e

package fuse_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/node/device"
	"lighter/node/fuse"
	"lighter/store"
	"lighter/store/origin"
	"lighter/test/testkit/filetree"
	"lighter/wire/client"
)

// emptyCache is a cache that stores nothing.
type emptyCache struct{}

func (emptyCache) Read(chunk.Ref, int, []byte) bool { return false }
func (emptyCache) Has(chunk.ID) bool                { return false }
func (emptyCache) Load([]chunk.Ref)                 {}
func (emptyCache) Put(chunk.Ref, []byte)            {}
func (emptyCache) IsLoading() bool                  { return false }

// silentHub returns origins that accept connections and never answer.
func silentHub(t *testing.T) *origin.Failover {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
		}
	}()
	hub, err := origin.New(slog.New(slog.DiscardHandler), client.Options{URL: "http://" + listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	return hub
}

// readPage reads one page of a device in another process.
func readPage(ctx context.Context, path string, n int64) (string, error) {
	args := []string{"if=" + path, "of=/dev/null", "bs=4096", "count=1", fmt.Sprintf("skip=%d", n)}
	out, err := exec.CommandContext(ctx, "dd", args...).CombinedOutput()
	return string(out), err
}

// local is a Reader whose bytes are on this machine.
type local struct{}

func (local) ReadAt(_ context.Context, dst []byte, _ int64) (missed int64, err error) {
	clear(dst)
	return 0, nil
}

// Processes read chunks that only one hub has, and this hub never answers. There are more processes
// than requests for units that a device may have in flight. Each process gets an error at its
// deadline, not before. A reader of another device is not affected. At the end, no request is in
// flight.
func TestSilentHub(t *testing.T) {
	const deadline = 5 * time.Second
	log := slog.New(slog.DiscardHandler)
	server, err := fuse.Mount(t.TempDir(), log)
	if err != nil {
		t.Fatal(err)
	}
	server.SetDeadline(deadline)
	units := store.NewFetcher(silentHub(t), emptyCache{})
	extents := filetree.New(t, 40, 60000).Extents
	d := device.New(extents, nil, units.Share(), log)
	path, err := server.Add(chunk.Sum([]byte("silent")), extents.DeviceSize, d)
	if err != nil {
		t.Fatal(err)
	}
	other, err := server.Add(chunk.Sum([]byte("other")), 1<<20, local{})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(context.Background()) }()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var readers sync.WaitGroup
	for i := range extents.Extents {
		e, err := extents.Extent(i)
		if err != nil {
			t.Fatal(err)
		}
		readers.Go(func() {
			begin := time.Now()
			out, err := readPage(ctx, path, e.Offset/4096)
			if err == nil || !strings.Contains(out, "Input/output error") || time.Since(begin) < deadline {
				t.Errorf("extent %d, after %s: got %v: %s; want an input/output error after %s", i,
					time.Since(begin), err, out, deadline)
			}
		})
	}
	for units.Stats().InFlight.UrgentWaiting == 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if out, err := readPage(ctx, other, 1); err != nil {
		t.Errorf("a read of another device: got %v: %s; want no error", err, out)
	}
	readers.Wait()
	if n := server.Stats().Failed[fuse.ReasonLate]; n != extents.Extents || ctx.Err() != nil {
		t.Errorf("%d reads missed their deadline, want all %d; %v", n, extents.Extents, ctx.Err())
	}
	units.Wait()
	if st := units.Stats().InFlight; st != (store.GateStats{}) {
		t.Errorf("still in flight: %+v, want nothing", st)
	}
	if err := errors.Join(server.Unmount(time.Second), <-served, server.Detach()); err != nil {
		t.Error(err)
	}
}
