package index

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"testing"

	"lighter/format/chunk"
)

func TestLocations(t *testing.T) {
	units := []chunk.Unit{{Pack: id(1), N: 0}, {Pack: id(1), N: 1}, {}, {Pack: id(2), N: 7}, {Pack: id(1), N: 1}}
	b := NewLocations(id(9))
	for _, u := range units {
		b.Add(u)
	}
	enc := b.Encode()
	l, err := OpenLocations(bytes.NewReader(enc), int64(len(enc)), id(9), int64(len(units)))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range units {
		if got, err := l.Unit(int64(i)); err != nil || got != want {
			t.Errorf("location %d is %v, error %v; want %v", i, got, err, want)
		}
	}
	if _, err := l.Unit(5); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("a location that is not there: %v", err)
	}
	open := func(b []byte, tree chunk.ID, n int64) error {
		_, err := OpenLocations(bytes.NewReader(b), int64(len(b)), tree, n)
		return err
	}
	if open(enc, id(8), 5) == nil || open(enc, id(9), 4) == nil || open(enc[:len(enc)-1], id(9), 5) == nil || open(enc[:20], id(9), 5) == nil {
		t.Error("locations that do not fit were accepted")
	}
	if err := open(enc, id(9), -1); err != nil {
		t.Errorf("as many as there are: %v", err)
	}
	many := bytes.Clone(enc[:locationsHeader])
	binary.LittleEndian.PutUint32(many[12:], 6)
	many = append(many, make([]byte, 6*chunk.Size+5*locationSize)...)
	if open(many, id(9), 5) == nil || open(many, id(9), -1) == nil {
		t.Error("more packs than extents were accepted")
	}
	endless := bytes.Clone(enc)
	binary.LittleEndian.PutUint64(endless[16:], 1<<63+1)
	if open(endless, id(9), -1) == nil || open(enc[:20], id(9), -1) == nil {
		t.Error("locations that are not whole were accepted")
	}
	golden(t, "locations.golden", hex.Dump(enc))
}

func FuzzOpenLocations(f *testing.F) {
	b := NewLocations(id(9))
	b.Add(chunk.Unit{Pack: id(1), N: 3})
	f.Add(b.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := OpenLocations(bytes.NewReader(b), int64(len(b)), id(9), 1)
		if err != nil {
			return
		}
		_, _ = l.Unit(0)
		if _, err := OpenLocations(bytes.NewReader(b), int64(len(b)), id(9), -1); err != nil {
			t.Error(err)
		}
	})
}
