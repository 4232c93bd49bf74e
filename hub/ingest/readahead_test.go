package ingest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// A readAhead returns all bytes of its source, then the source's error, also at further calls.
func TestReadAheadGivesAllBytesAndTheError(t *testing.T) {
	whole := bytes.Repeat([]byte("0123456789"), 300_000)
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		from io.Reader
		want error
	}{
		"whole":  {bytes.NewReader(whole), nil},
		"pieces": {iotest.HalfReader(bytes.NewReader(whole)), nil},
		"at end": {iotest.DataErrReader(bytes.NewReader(whole)), nil},
		"broken": {io.MultiReader(bytes.NewReader(whole), iotest.ErrReader(broken)), broken},
	} {
		var taken []byte
		r := newReadAhead(t.Context(), func(b []byte) { taken = append(taken, b...) })
		filled := make(chan error, 1)
		go func() { filled <- r.fill(c.from) }()
		got, err := io.ReadAll(r)
		if err != c.want || !bytes.Equal(got, whole) || !bytes.Equal(taken, whole) {
			t.Errorf("%s: read %d bytes, onBlock got %d, error %v, want %d bytes and error %v", name, len(got),
				len(taken), err, len(whole), c.want)
		}
		if _, err := r.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: a read after the end returned no error", name)
		}
		if err := <-filled; err != nil {
			t.Errorf("%s: fill returned %v", name, err)
		}
	}
}

// When the context ends, fill and Read return, even if the other one is not called any more.
func TestReadAheadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := newReadAhead(ctx, func([]byte) {})
	filled := make(chan error, 1)
	go func() { filled <- r.fill(strings.NewReader(strings.Repeat("x", 10*readAheadBlocks*readAheadBlock))) }()
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-filled; !errors.Is(err, context.Canceled) {
		t.Errorf("fill: error %v, want Canceled", err)
	}
	if _, err := newReadAhead(ctx, func([]byte) {}).Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Read: error %v, want Canceled", err)
	}
}
