package many

import (
	"context"
	"fmt"
	"time"

	"lighter/format/trace"
)

const (
	// piece is the most that is read at a time: what the kernel asks for, which
	// merged reads of a trace are longer than.
	piece = 128 << 10
	// readTimeout is how long the kernel's reads may take on a node.
	readTimeout = 100 * time.Second
)

// reader is the device that a start reads.
type reader interface {
	ReadAt(ctx context.Context, dst []byte, offset int64) (missed int64, err error)
}

// replay reads what a start read, one read after the other, each as long after the
// answer to the one before it as it was in the trace. So a trace of a start of which
// all was local gives the time that its process took for itself. It adds the time of
// each read, in seconds, to took.
func replay(ctx context.Context, d reader, t trace.Trace, took []float64) ([]float64, error) {
	buffer := make([]byte, piece)
	at := time.Duration(0)
	for _, r := range t.Reads {
		if !pause(ctx, r.At-at) {
			return took, context.Cause(ctx)
		}
		at = r.At
		for done := int64(0); done < r.Length; done += piece {
			dst := buffer[:min(piece, r.Length-done)]
			begin := time.Now()
			if err := read(ctx, d, dst, r.Offset+done); err != nil {
				return took, fmt.Errorf("read %d bytes at %d: %w", len(dst), r.Offset+done, err)
			}
			took = append(took, time.Since(begin).Seconds())
		}
	}
	return took, nil
}

func read(ctx context.Context, d reader, dst []byte, offset int64) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	_, err := d.ReadAt(ctx, dst, offset)
	return err
}

// pause tells whether so much time has gone by before ctx was done.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
