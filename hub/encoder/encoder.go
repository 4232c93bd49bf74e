// Package encoder bounds how many units the hub compresses at once. Ingestion goes first: while an
// image is ingested, background work pauses after each unit.
package encoder

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/compress"
	"lighter/format/pack"
)

// level is the zstd level of units. docs/decisions/units.md has the measurements.
const level = zstd.SpeedDefault

// Pool is a fixed number of zstd encoders. It is safe for concurrent use.
type Pool struct {
	free      chan *zstd.Encoder
	ingesting atomic.Int32 // number of images that are being ingested
}

// NewPool returns a pool of n encoders.
func NewPool(n int) *Pool {
	p := &Pool{free: make(chan *zstd.Encoder, n)}
	for range n {
		p.free <- compress.UnitEncoder(level, pack.MaxPlain)
	}
	return p
}

// Ingest tells the pool that an image is being ingested, until the caller calls end.
func (p *Pool) Ingest() (end func()) {
	p.ingesting.Add(1)
	return func() { p.ingesting.Add(-1) }
}

// Encode encodes a unit of an image that is being ingested, and appends it to dst.
func (p *Pool) Encode(b *pack.UnitBuilder, dst []byte) []byte {
	enc := <-p.free // soon: each encoder is in use only while one unit is compressed
	dst = b.Encode(dst, enc)
	p.free <- enc
	return dst
}

// EncodeBackground encodes a unit and appends it to dst. While an image is ingested, it then pauses
// for as long as the encoding took, including the wait for an encoder.
func (p *Pool) EncodeBackground(ctx context.Context, b *pack.UnitBuilder, dst []byte) ([]byte, error) {
	pause, err := p.Background(ctx, func(enc *zstd.Encoder) { dst = b.Encode(dst, enc) })
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(pause):
		return dst, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Background waits for an encoder and runs work with it. It returns how long the call took if an
// image is being ingested, and otherwise 0.
func (p *Pool) Background(ctx context.Context, work func(enc *zstd.Encoder)) (pause time.Duration, err error) {
	begin := time.Now()
	select {
	case enc := <-p.free:
		work(enc)
		p.free <- enc
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if p.ingesting.Load() == 0 {
		return 0, nil
	}
	return time.Since(begin), nil
}
