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
			t.Errorf("%s: %d bytes, %d taken, %v", name, len(got), len(taken), err)
		}
		if _, err := r.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: it goes on behind its end", name)
		}
		if err := <-filled; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

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
		t.Errorf("fill: %v", err)
	}
	if _, err := newReadAhead(ctx, func([]byte) {}).Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("read: %v", err)
	}
}
