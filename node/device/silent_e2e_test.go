//go:build e2e

package device

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
	"lighter/store"
	"lighter/store/hub"
)

// nothing is a cache that keeps nothing.
type nothing struct{}

func (nothing) Read(chunk.Ref, int, []byte) bool { return false }
func (nothing) Has(chunk.ID) bool                { return false }
func (nothing) Load([]chunk.Ref)                 {}
func (nothing) Put(chunk.Ref, []byte)            {}

// silentHub accepts connections and never says a word.
func silentHub(t *testing.T) *hub.Origins {
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
	client, err := hub.NewClient(hub.Options{URL: "http://" + listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	return hub.NewOrigins(slog.New(slog.DiscardHandler), client)
}

// page reads one page of a device, as another process.
func page(ctx context.Context, path string, n int64) (string, error) {
	out, err := exec.CommandContext(ctx, "dd", "if="+path, "of=/dev/null", "bs=4096", "count=1", fmt.Sprintf("skip=%d", n)).CombinedOutput()
	return string(out), err
}

// Processes that read what a silent hub has, more of them than are asked for at a
// time, get an error when their time is over, and no earlier; those of another
// device notice nothing, and nothing is left behind.
func TestSilentHub(t *testing.T) {
	const deadline = 5 * time.Second
	log := slog.New(slog.DiscardHandler)
	server, err := Mount(t.TempDir(), true, log)
	if err != nil {
		t.Fatal(err)
	}
	server.deadline = deadline
	units := store.NewUnits(silentHub(t), nothing{})
	template, _, image := build(t)
	d := New(template.extents, nil, NewAhead(func() Chunks { return units.Share() }, AheadOptions{}, log), log)
	path, err := server.Add(testID("silent"), int64(len(image)), d)
	if err != nil {
		t.Fatal(err)
	}
	other, err := server.Add(testID("other"), testSize, ready{})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(context.Background()) }()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var readers sync.WaitGroup
	for i := range d.extents.Extents {
		e, err := d.extents.Extent(i)
		if err != nil {
			t.Fatal(err)
		}
		readers.Go(func() {
			begin := time.Now()
			out, err := page(ctx, path, e.Offset/4096)
			if err == nil || !strings.Contains(out, "Input/output error") || time.Since(begin) < deadline {
				t.Errorf("extent %d, after %s: %v: %s", i, time.Since(begin), err, out)
			}
		})
	}
	eventually(t, "readers whose turn is not yet", func() bool { return units.Stats().InFlight.UrgentWaiting > 0 })
	if out, err := page(ctx, other, 1); err != nil {
		t.Errorf("another device: %v: %s", err, out)
	}
	readers.Wait()
	if n := server.Stats().Failed[reasonLate]; n != d.extents.Extents || ctx.Err() != nil {
		t.Errorf("%d reads of %d were late; %v", n, d.extents.Extents, ctx.Err())
	}
	units.Wait()
	if st := units.Stats().InFlight; st != (store.GateStats{}) {
		t.Errorf("left: %+v", st)
	}
	if err := errors.Join(server.Unmount(time.Second), <-served, server.Detach()); err != nil {
		t.Error(err)
	}
}
