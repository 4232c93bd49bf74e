package store

import (
	"context"
	"io"
	"time"

	"lighter/format/chunk"
)

// Source fetches chunks by reference. It does not verify its answers; the caller of Fetch does.
//
// An error that wraps chunk.ErrNotFound means that the source works and does not have the chunk. An
// error that wraps a *chunk.InvalidError means that the source answered with something else. An
// error that wraps Unavailable means that the source may have the chunk, and cannot give it now.
//
// A source may also be a UnitSource, a Connector and an Estimator.
type Source interface {
	// Fetch passes an answer that holds the chunk ref.ID to take. If take returns an error
	// that wraps a *chunk.InvalidError, the answer was wrong, and a source with several
	// origins asks the next one, so take may be called more than once. Any other error of
	// take ends Fetch. Neither the answer nor its body may be used after take has returned.
	Fetch(ctx context.Context, ref chunk.Ref, take func(Answer) error) error
}

// UnitSource is a Source that can give all chunks of a unit in one answer. Where the unit of a
// chunk is known, a Fetcher asks for that unit, and all its chunks share the request.
type UnitSource interface {
	Source
	// FetchUnit passes an answer that holds the chunks of the unit to take, as Fetch does.
	FetchUnit(ctx context.Context, u chunk.Unit, take func(Answer) error) error
}

// Connector is a Source that opens connections before they are needed.
type Connector interface {
	// Connect sees to it that n idle connections are open. It does not wait for them.
	Connect(n int)
}

// Estimator is a Source that has measured its path before the Fetcher has, with other requests.
type Estimator interface {
	// Estimate returns the round-trip time and the bandwidth, in bytes a second, of the path to a
	// server that Router names, or to the one without a name; 0: not known.
	Estimate(server string) (roundTrip time.Duration, bandwidth float64)
}

// Unavailable is an error of a Source that may have the chunk, and cannot give it now.
type Unavailable interface {
	error
	// RetryAfter returns how long to wait before the next request. A reader asks again after
	// maxPause in any case. The source may answer with the same error and send nothing.
	RetryAfter() time.Duration
	// Missed reports whether one of several origins answered without the chunk. If so, another unit
	// may hold the chunk.
	Missed() bool
}

// Answer is a source's answer to one request.
type Answer struct {
	Origin string // the name of the origin that gave it, for users; there are only a few origins
	Length int64  // of the body, in bytes; -1: not known
	Body   io.Reader
	// Decode decodes the whole body. The batch verifies each chunk when the chunk is read. If
	// Decode is nil, the body is the plain bytes of the chunk.
	Decode func(body []byte) (Batch, error)
	// DecodeArriving is Decode of a body whose bytes still arrive: arrived waits until the first n
	// have arrived, and returns how many have, or why no more will. It may be nil.
	DecodeArriving func(body []byte, arrived func(n int) (int, error)) (Batch, error)

	RoundTrip time.Duration // to the first byte; 0: the Fetcher measures it; negative: not known
	Reused    bool          // the connection had been used before, so RoundTrip includes no handshake
}

// Batch holds the chunks of one answer. *pack.Unit is one.
type Batch interface {
	Len() int
	// Ref returns ID and length of chunk i.
	Ref(i int) chunk.Ref
	// Chunk returns the plain bytes of chunk i, verified.
	Chunk(i int) ([]byte, error)
	// Lookup returns the plain bytes of a chunk, verified, or an error that wraps
	// chunk.ErrNotFound.
	Lookup(id chunk.ID) ([]byte, error)
	// Memory returns how many bytes of memory the batch holds.
	Memory() int64
}
