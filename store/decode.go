package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"lighter/format/chunk"
	"lighter/format/pack"
)

var errTooLong = errors.New("it is longer than any unit")

// decoder receives and decodes answers. It decodes at most one answer for each processor at a time,
// because the origin decides how much memory and time an answer takes. In addition, it decodes some
// answers while they arrive. A batch may decode the rest of its chunks later: when they are stored,
// or when another reader of the unit wants them.
type decoder struct {
	slots    chan struct{} // has a value for each answer that is decoded after it has arrived
	arriving chan struct{} // has a value for each answer that is decoded while it arrives
	requests atomic.Int64
	received atomic.Int64 // encoded bytes
	invalid  atomic.Int64 // wrong answers, and wrong chunks in answers
}

// wrap turns the answer of the next step into a batch that holds the chunk. An answer without the
// chunk counts as wrong, because another origin may give another answer.
func (d *decoder) wrap(next step) func(ctx context.Context, f *flight) (Batch, error) {
	return func(ctx context.Context, f *flight) (batch Batch, err error) {
		origin := ""
		err = next(ctx, f, func(a Answer) (err error) {
			origin = a.Origin
			batch, err = d.take(f, a)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("fetch %s: %w", f.key, err)
		}
		f.share.count(origin, f.received)
		return batch, nil
	}
}

func (d *decoder) take(f *flight, a Answer) (Batch, error) {
	if a.DecodeArriving != nil && a.Length > 0 && a.Length <= pack.MaxStored {
		select {
		case d.arriving <- struct{}{}:
			defer func() { <-d.arriving }()
			return d.takeArriving(f, a)
		default:
		}
	}
	body, err := receive(a)
	switch {
	case err == errTooLong:
		return nil, d.wrong(f, err)
	case err != nil:
		return nil, err
	}
	d.count(f, len(body))
	return d.decode(f, a, body)
}

// takeArriving decodes an answer while it arrives.
func (d *decoder) takeArriving(f *flight, a Answer) (batch Batch, err error) {
	in := newIncoming(int(a.Length))
	var wrong error
	decoded := make(chan struct{})
	go func() {
		defer close(decoded)
		if batch, wrong = a.DecodeArriving(in.body, in.wait); wrong == nil {
			_, wrong = batch.Lookup(f.ref.ID)
		}
	}()
	err = in.receive(a.Body)
	<-decoded
	if err != nil {
		return nil, err // rather than what follows from it
	}
	d.count(f, len(in.body))
	if wrong != nil {
		return nil, d.wrong(f, wrong)
	}
	return batch, nil
}

func (d *decoder) count(f *flight, received int) {
	d.received.Add(int64(received))
	f.received = int64(received)
}

// wrong counts a wrong answer, and returns the error that says so.
func (d *decoder) wrong(f *flight, err error) error {
	d.invalid.Add(1)
	return &chunk.InvalidError{What: f.key.String(), Err: err}
}

// receive reads the body, of at most pack.MaxStored bytes.
func receive(a Answer) (b []byte, err error) {
	switch {
	case a.Length > pack.MaxStored:
		return nil, errTooLong
	case a.Length < 0:
		b, err = io.ReadAll(io.LimitReader(a.Body, pack.MaxStored+1))
	default:
		b = make([]byte, a.Length)
		_, err = io.ReadFull(a.Body, b)
	}
	if err == nil && len(b) > pack.MaxStored {
		err = errTooLong
	}
	return b, err
}

func (d *decoder) decode(f *flight, a Answer, body []byte) (batch Batch, err error) {
	d.slots <- struct{}{}
	defer func() { <-d.slots }()
	if a.Decode == nil {
		batch = single{f.ref, body}
	} else if batch, err = a.Decode(body); err != nil {
		return nil, d.wrong(f, err)
	}
	if _, err = batch.Lookup(f.ref.ID); err != nil {
		return nil, d.wrong(f, err)
	}
	return batch, nil
}

// single is the Batch of an answer that is one plain chunk.
type single struct {
	ref   chunk.Ref
	plain []byte
}

func (s single) Len() int                  { return 1 }
func (s single) Ref(int) chunk.Ref         { return s.ref }
func (s single) Chunk(int) ([]byte, error) { return s.plain, s.ref.Check(s.plain) }
func (s single) Memory() int64             { return int64(len(s.plain)) }

func (s single) Lookup(id chunk.ID) ([]byte, error) {
	if id != s.ref.ID {
		return nil, chunk.ErrNotFound
	}
	return s.Chunk(0)
}
