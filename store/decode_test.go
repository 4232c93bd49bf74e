package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/format/pack"
	"lighter/test/testkit/eventually"
)

// slowly is a UnitSource whose answers arrive in pieces, and may be decoded meanwhile.
type slowly struct {
	*source
	pieces  chan []byte // the body; it ends when the channel is closed
	length  int64
	failure error // at the end of the pieces
	waits   chan int
}

func (s *slowly) Read(p []byte) (int, error) {
	b, ok := <-s.pieces
	if !ok {
		return 0, s.failure
	}
	return copy(p, b), nil
}

func (s *slowly) FetchUnit(_ context.Context, _ chunk.Unit, take func(Answer) error) error {
	return take(Answer{Length: s.length, Body: s,
		Decode: func(b []byte) (Batch, error) { return pack.DecodeUnit(b) },
		DecodeArriving: func(b []byte, arrived func(int) (int, error)) (Batch, error) {
			for n := 0; n < len(b); {
				var err error
				if n, err = arrived(n + 1); err != nil {
					return nil, err
				}
				s.waits <- n
			}
			return pack.DecodeUnit(b)
		}})
}

func newSlowly(unit []byte) *slowly {
	return &slowly{&source{}, make(chan []byte), int64(len(unit)), io.EOF, make(chan int, 100)}
}

// An answer is decoded while it arrives, up to a number of answers; others are decoded when they
// have arrived.
func TestAnswersAreDecodedWhileTheyArrive(t *testing.T) {
	unit, refs := encode(t, strings.Repeat("one", 100), "two")
	src := newSlowly(unit)
	f := newFetcher(src, noCache{})
	for _, early := range []bool{true, false} {
		if !early {
			for range maxArriving {
				f.decoder.arriving <- struct{}{}
			}
		}
		result := make(chan error, 1)
		got := make([]byte, refs[1].Length)
		go func() { result <- f.Share().Read(t.Context(), refs[1], 0, got, nil) }()
		src.pieces <- unit[:5]
		if early {
			if n := <-src.waits; n != 5 {
				t.Errorf("%d bytes have arrived, want 5", n)
			}
		}
		src.pieces <- unit[5:]
		if err := <-result; err != nil || string(got) != "two" {
			t.Errorf("early %t: got %q, %v", early, got, err)
		}
		if early {
			if n := <-src.waits; n != len(unit) {
				t.Errorf("%d bytes have arrived, want %d", n, len(unit))
			}
		} else if len(src.waits) > 0 {
			t.Error("a further answer was decoded while it arrived")
		}
		f.Wait() // so that the next read does not share the request
	}
	if got := f.Stats().Bytes; got != 2*int64(len(unit)) {
		t.Errorf("%d bytes were received, want those of two units", got)
	}
}

// An answer that breaks off fails with the error of its body. An answer with wrong bytes is
// invalid. Neither leaves anything behind.
func TestBadArrivals(t *testing.T) {
	unit, refs := encode(t, "one", "two")
	broken := errors.New("the connection is broken")
	for name, test := range map[string]struct {
		body []byte
		err  error
		want func(error) bool
	}{
		"broken":  {unit[:9], broken, func(err error) bool { return errors.Is(err, broken) }},
		"short":   {unit[:9], io.EOF, func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }},
		"wrong":   {bytes.Repeat([]byte{1}, len(unit)), io.EOF, isAnswer},
		"another": {func() []byte { b, _ := encode(t, "six", "ten"); return b }(), io.EOF, isAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			src := newSlowly(unit)
			src.failure = test.err
			f := newFetcher(src, noCache{})
			join, _ := f.flights.join(wanted{key: f.keyOf(refs[0]), route: f.routeTo(f.keyOf(refs[0])), ref: refs[0],
				share: f.Share(), size: typicalUnit})
			f.gate.want(join.share, &join.ticket, true)
			src.pieces <- test.body
			close(src.pieces)
			<-join.done
			if !test.want(join.err) || isAnswer(join.err) && !errors.As(join.err, new(*chunk.InvalidError)) {
				t.Errorf("got error %v", join.err)
			}
			f.flights.leave(join)
			f.Wait()
			eventually.Holds(t, "no answer is decoded", func() bool { return len(f.decoder.arriving) == 0 })
			if got := f.Stats().Invalid; (got == 1) != isAnswer(join.err) {
				t.Errorf("%d answers were invalid, after %v", got, join.err)
			}
		})
	}
}
