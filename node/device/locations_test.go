package device

import (
	"bytes"
	"context"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
)

// remote is a memory without cached chunks. It does not answer a request for a chunk by its ID.
type remote struct {
	*memory
	reading chan struct{}   // gets a value for each request by an ID
	units   chan chunk.Unit // gets the unit of each other request
}

func (*remote) Cached(chunk.Ref, int, []byte) bool { return false }

func (s *remote) Read(ctx context.Context, ref chunk.Ref, offset int, dst []byte, missed func()) error {
	if ref.Unit.IsZero() {
		s.reading <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	}
	s.units <- ref.Unit
	return s.memory.Read(ctx, ref, offset, dst, missed)
}

// A read that waits for a chunk by its ID continues with the unit when locations arrive. Later
// reads use the newest locations.
func TestLocationsArriveDuringARead(t *testing.T) {
	d, m, image := newDevice(t)
	s := &remote{m, make(chan struct{}, 100), make(chan chunk.Unit, 100)}
	d.chunks = s
	d.LocateWith(func() <-chan struct{} { return nil }) // fetches no locations
	at := bytes.IndexFunc(image, func(r rune) bool { return r != 0 })
	got, done := make([]byte, 100), make(chan error)
	read := func() {
		_, err := d.ReadAt(t.Context(), got, int64(at))
		done <- err
	}
	go read()
	<-s.reading
	for n := range uint32(2) {
		unit := chunk.Unit{Pack: chunk.Sum([]byte("pack")), N: n}
		made := index.NewLocations(d.extents.ID())
		for range d.extents.Extents {
			made.Add(unit)
		}
		b := made.Encode()
		locations, err := index.OpenLocations(bytes.NewReader(b), int64(len(b)), d.extents.ID(), d.extents.Extents)
		if err != nil {
			t.Fatal(err)
		}
		d.SetLocations(locations)
		if n == 1 {
			go read()
		}
		if err := <-done; err != nil || !bytes.Equal(got, image[at:at+100]) {
			t.Errorf("got other bytes than those of the device, or error %v", err)
		}
		if used := <-s.units; used != unit {
			t.Errorf("read from unit %v, want %v", used, unit)
		}
	}
}
